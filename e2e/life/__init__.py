"""The life of a prefix on real parts: API server, operator, sidecars, vLLM, and the router."""
