"""The domain of promptprefix, with no I/O: what a prompt prefix is and when two are the same."""
