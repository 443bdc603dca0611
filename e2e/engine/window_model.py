"""Makes a small model with random weights most of whose layers attend to a sliding window.

Run by the engine environment's Python: ``python -m e2e.engine.window_model FOLDER``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from e2e.engine.model import make_tokenizer

ROOT = Path(__file__).parents[2]
WINDOW = 128
CONTEXT = 4096
VOCABULARY = 8192


def ensure_window_model(python: Path, folder: Path) -> Path:
    """Return ``folder`` with the model in it, made with ``python`` (it has torch)."""
    folder.mkdir(parents=True)
    subprocess.run(
        [python, "-m", __name__, folder],
        env={
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        timeout=120,
        check=True,
    )
    return folder


def make_window_model(folder: Path) -> None:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        max_position_embeddings=CONTEXT,
        sliding_window=WINDOW,
        layer_types=[*["sliding_attention"] * 3, "full_attention"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.unk_token_id,
        torch_dtype="float32",
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make_window_model(Path(sys.argv[1]))
