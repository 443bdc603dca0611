"""True pins of prefix blocks on stock vLLM, as a scheduler class that vLLM loads by name."""
