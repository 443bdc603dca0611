class ClusterError(Exception):
    """The cluster cannot be started, or one of its parts failed; the message says what to do."""
