"""Text to token ids without a vocabulary: chunks of a few characters, each hashed to its id.

The same text has the same ids in every process. Like a trained tokenizer it takes a space
together with the word behind it, so a boundary between two texts isn't always one of tokens.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

VOCABULARY = 2**30
BEGIN = 1
REMEMBERED_SEGMENTS = 1024
"""A system text stands between two tags, so it is tokenized once for all users and engines."""
WORDS = (" so", " then", " the", " other", " one", " says", " that", " it", " was", " never", " in",
         " doubt", " until", " today")  # fmt: skip

_TAG = re.compile(r"(<\|[a-z_]+\|>)")
_CHUNK = re.compile(r"<\|[a-z_]+\|>|\s?[A-Za-z]{1,6}|\s?[0-9]{1,3}|\s+|[^\sA-Za-z0-9]")
_RESERVED = 256


def tokenize(text: str) -> list[int]:
    """Return the ids of ``text``, without a begin token."""
    return [token for segment in _TAG.split(text) for token in _ids(segment)]


@lru_cache(maxsize=REMEMBERED_SEGMENTS)
def _ids(text: str) -> tuple[int, ...]:
    return tuple(_id(chunk) for chunk in _CHUNK.findall(text))


def _id(chunk: str) -> int:
    digest = zlib.crc32(chunk.encode("utf-8", "surrogatepass"))
    return _RESERVED + digest % (VOCABULARY - _RESERVED)


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    options: Mapping[str, Any],
    *,
    generation_prompt: bool = True,
) -> list[int]:
    """Return the ids of a chat: system text, tools, turns; ``options`` are shown in the head."""
    turns = list(messages)
    system = ""
    if turns and turns[0].get("role") in ("system", "developer"):
        system = content_text(turns.pop(0).get("content"))
    parts: list[str] = []
    if system or tools or options:
        parts.append("<|im_start|>system\n")
        parts += [f"{name}: {json.dumps(value)}\n" for name, value in options.items()]
        parts.append(system)
        if tools:
            shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            parts.append(f"\n\n# Tools\n{shown}\n")
        parts.append("<|im_end|>\n")
    for turn in turns:
        text = content_text(turn.get("content"))
        parts.append(f"<|im_start|>{turn.get('role')}\n{text}<|im_end|>\n")
    if generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return [BEGIN, *tokenize("".join(parts))]


def content_text(content: Any) -> str:
    """Return a message's text; several text parts are joined as vLLM joins them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def word(seed: int, position: int) -> tuple[int, str]:
    """Return the token that a simulated model generates at ``position``: its id and text."""
    text = WORDS[(seed + position * 5) % len(WORDS)]
    return _id(text), text
