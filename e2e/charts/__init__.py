"""The charts, rendered by the real Helm; no cluster is needed."""
