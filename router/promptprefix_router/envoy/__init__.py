"""What the router's own Envoy is told and says: its files, and its admin listener."""
