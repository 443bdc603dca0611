"""The door through which the router's own Envoy asks."""
