"""The router: Envoy carries the bytes, a small picker says which pod answers a request."""
