"""Which pod answers a request: load, what pods have seen, and the cost of both."""
