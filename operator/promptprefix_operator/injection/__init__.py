"""The webhook that adds the warming sidecar and the engine plugin to vLLM pods."""
