"""Renders and tokenizes chat requests as vLLM does, with tokenizers trained on the spot.

Run by the engine environment's Python. Reads one JSON request a line from standard input
(``tokenizer``, ``template``, ``messages``, ``tools``, ``options``) and writes one list of token ids
a line. The tokenizers stand for the families in use: byte-level BPE with GPT-2's and Llama 3's
pre-tokenizer, and SentencePiece's BPE and Unigram with a metaspace.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 3000
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(kind: str, texts: list[str]) -> Any:
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace()
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            unk_token="<unk>",
            show_progress=False,
        )
    else:
        metaspace = kind == "metaspace-bpe"
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=metaspace))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if metaspace:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
            alphabet = []
        elif kind == "llama3":
            split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        else:
            tokenizer.pre_tokenizer = byte_level
        special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))] if metaspace else SPECIAL
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
        )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def training_texts() -> list[str]:
    folder = Path(json.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    # Words and marks at the places where templates end, so that merges over them exist.
    chat = ["User: (see ((below))\n\nAssistant: ok:)\n", "User:hello user:( Userinfo 's 00\n"] * 200
    return [*texts, *chat]


def main() -> None:
    texts = training_texts()
    known: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        kind = request["tokenizer"]
        if kind not in known:
            known[kind] = trained(kind, texts)
        tokenizer = known[kind]
        text = tokenizer.apply_chat_template(
            request["messages"],
            tools=request["tools"],
            chat_template=request["template"],
            tokenize=False,
            add_generation_prompt=True,
            **request["options"],
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        sys.stdout.write(json.dumps(ids) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
