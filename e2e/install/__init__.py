"""The installation as a user does it, on the real node: Helm, injection, GitOps, upgrade, end."""
