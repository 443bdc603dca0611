"""The door through which any gateway asks: the endpoint-picker protocol over ext_proc."""
