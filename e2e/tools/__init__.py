"""Programs of others that the end-to-end tests use, each pinned by a Go module of its own."""
