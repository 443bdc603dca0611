"""Makes a small Llama with random weights, its tokenizer and its chat template, without a download.

Run by the engine environment's Python: ``python model.py FOLDER``. The same script gives the same
folder on the same machine: the seed is fixed and the tokenizer is trained on the standard library's
sources, in sorted order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 20_260_101
VOCABULARY = 8192
HIDDEN = 512
LAYERS = 4
CONTEXT = 4096
TRAINING_BYTES = 3_000_000
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|end|>")
CHAT_TEMPLATE = Path(__file__).parent / "templates" / "demo.jinja"


def ensure_model(python: Path, cache: Path, progress: Callable[[str], None]) -> Path:
    """The model's folder in the cache, made with ``python`` (it has torch) if it is not there."""
    inputs = Path(__file__).read_bytes() + CHAT_TEMPLATE.read_bytes()
    folder = cache / "models" / f"tiny-llama-{hashlib.sha256(inputs).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    progress("making the tiny model")
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        done = subprocess.run(
            [python, __file__, draft],
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(draft), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the tiny model could not be made:\n{done.stderr[-2000:]}")
        # Containers read it as another user; temporary folders and weights are made private.
        draft.chmod(0o755)
        for path in draft.iterdir():
            path.chmod(0o644)
        # A rename onto a folder that another process finished first fails; theirs is the same.
        if not folder.is_dir():
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def training_texts() -> list[str]:
    """The first part of the standard library's sources: English comments and code, always there."""
    library = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    size = 0
    for path in sorted(library.glob("*.py")):
        if size >= TRAINING_BYTES:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(text)
        size += len(text)
    return texts


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


def make_model(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 64,
        num_key_value_heads=HIDDEN // 128,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        torch_dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Random weights may sample an end at any time; without one, answers have the asked length.
    generation = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
