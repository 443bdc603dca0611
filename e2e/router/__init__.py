"""Parts of the router's end-to-end tests: fakes of its neighbours, and the real processes."""
