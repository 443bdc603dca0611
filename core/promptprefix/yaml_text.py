"""YAML of plain data, for generated files: block style, one spelling for every value.

Strings that aren't plain words are written as JSON strings, which YAML reads as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Plain: TypeAlias = "str | int | bool | Sequence[Plain] | Mapping[str, Plain] | None"

PLAIN_WORD = re.compile(r"[A-Za-z$][A-Za-z0-9._/-]*( [A-Za-z0-9._/-]+)*")
RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def yaml_text(value: Mapping[str, Plain]) -> str:
    """Return ``value`` as a YAML document that ends with a line feed."""
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(value: Mapping[str, Plain], indent: str) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        lines += _entry(f"{indent}{_scalar(key)}:", item, indent)
    return lines


def _sequence(value: Sequence[Plain], indent: str) -> list[str]:
    lines: list[str] = []
    for item in value:
        if isinstance(item, str) or not isinstance(item, (Mapping, Sequence)) or not item:
            lines.append(f"{indent}- {_scalar(item)}")
            continue
        inner = f"{indent}  "
        first, *rest = (
            _mapping(item, inner) if isinstance(item, Mapping) else _sequence(item, inner)
        )
        lines += [f"{indent}- {first[len(inner) :]}", *rest]
    return lines


def _entry(head: str, item: Plain, indent: str) -> list[str]:
    if isinstance(item, str) or not isinstance(item, (Mapping, Sequence)) or not item:
        return [f"{head} {_scalar(item)}"]
    if isinstance(item, Mapping):
        return [head, *_mapping(item, f"{indent}  ")]
    return [head, *_sequence(item, indent)]


def _scalar(item: Plain) -> str:
    if isinstance(item, str) and PLAIN_WORD.fullmatch(item) and item.lower() not in RESERVED:
        return item
    return json.dumps(item, ensure_ascii=False)
