"""What every engine does for us: one suite for real vLLM and for the simulated engine."""
