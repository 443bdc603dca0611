"""Makes a LoRA adapter with random weights for the tiny model, without a download.

Run by the engine environment's Python: ``python adapter.py FOLDER SEED HIDDEN LAYERS KEYS``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RANK = 8
SCALE = 0.5


def ensure_adapter(python: Path, folder: Path, seed: int = 1) -> Path:
    """Return ``folder`` with an adapter in it, made with ``python`` (it has torch) anew."""
    from e2e.engine.model import HIDDEN, LAYERS

    subprocess.run(
        [python, __file__, folder, *map(str, (seed, HIDDEN, LAYERS, HIDDEN // 2))],
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        timeout=120,
        check=True,
    )
    return folder


def make_adapter(folder: Path, seed: int, hidden: int, layers: int, keys: int) -> None:
    """``keys``: width of the keys and values of one layer."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    weights = {}
    for layer in range(layers):
        for name, width in (("q_proj", hidden), ("v_proj", keys)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, hidden) * SCALE
            weights[f"{place}.lora_B.weight"] = torch.randn(width, RANK) * SCALE
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "base_model_name_or_path": "demo",
    }
    (folder / "adapter_config.json").write_text(json.dumps(description), encoding="utf-8")


if __name__ == "__main__":
    make_adapter(Path(sys.argv[1]), *map(int, sys.argv[2:]))
