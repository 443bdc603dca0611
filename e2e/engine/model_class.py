"""Makes vLLM store what it knows of the Llama class, so that no start has to find it out.

Run by the engine environment's Python with VLLM_CACHE_ROOT set to the folder to fill.
"""

from __future__ import annotations

from vllm.model_executor.models.registry import ModelRegistry

if __name__ == "__main__":
    ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
