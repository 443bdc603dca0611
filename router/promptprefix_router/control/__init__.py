"""What the router and the operator tell each other."""
