"""Which declared prefix a request stands for."""
