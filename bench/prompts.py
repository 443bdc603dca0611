"""Declared prefixes of a bench, and requests that use them with a turn of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.instant_backend import MODEL
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RoutePrefix

TENANT = "ml"
NUMBER = "#" * 12
"""Stands in a body for the number of the request, which makes its user's turn unlike all others."""

_SENTENCES = (
    "answer the customer about invoices parcels refunds with care name every rule that you apply "
    "never guess ask again when an order number is missing use the tool before you promise money "
    "write short sentences quote the paragraph of the contract and tell who decides about it"
)
_WORDS = _SENTENCES.split()


@dataclass(frozen=True)
class Shape:
    """How large a body is: bytes of its system text, its tools (some 350 bytes each), its turn."""

    system: int
    tools: int
    turn: int


SMALL = Shape(system=4_600, tools=11, turn=400)
"""A body of 10 kB."""
LARGE = Shape(system=37_000, tools=102, turn=17_500)
"""A body of 100 kB."""


@dataclass(frozen=True)
class Prompt:
    """A declared prefix, and a chat completion that uses it, with `NUMBER` in the user's turn."""

    name: str
    payload: Payload
    body: str

    @cached_property
    def prefix(self) -> RoutePrefix:
        """The prefix as an operator tells it."""
        return RoutePrefix(
            id=f"version-{self.name}",
            name=self.name,
            tenant=TENANT,
            model=MODEL,
            fingerprint=payload_fingerprint(MODEL, self.payload),
            token_digests=(self.digest,),
            content_digest=self.payload.digest,
            tokens=self.payload.estimated_tokens,
        )

    @property
    def digest(self) -> str:
        """What stands for the prefix's tokens in the route table."""
        return f"digest-{self.name}"


def prompt(number: int, shape: Shape) -> Prompt:
    """Return the prefix with that number; the same one every time."""
    chance = random.Random(number)  # noqa: S311 - the same text every time
    system = f"You are desk {number}.\n{_text(chance, shape.system)}"
    tools = [_tool(chance, each) for each in range(shape.tools)]
    payload = Payload(systemInstructions=system, toolDefinitions=json.dumps(tools))
    content = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{NUMBER} {_text(chance, shape.turn)}"},
        ],
        "tools": tools,
        "temperature": 0.2,
        "max_tokens": 256,
    }
    return Prompt(f"desk-{number}", payload, json.dumps(content))


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write a line for each: name, tab, body."""
    lines = (f"{each.name}\t{each.body}\n" for each in prompts)
    path.write_text("".join(lines), encoding="utf-8")


def _text(chance: random.Random, size: int) -> str:
    lines: list[str] = []
    left = size
    while left > 0:
        lines.append(" ".join(chance.choices(_WORDS, k=13))[:left])
        left -= len(lines[-1]) + 1
    return "\n".join(lines)


def _tool(chance: random.Random, number: int) -> dict[str, object]:
    properties = {
        f"argument_{each}": {"type": "string", "description": " ".join(chance.choices(_WORDS, k=4))}
        for each in range(3)
    }
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    return {
        "type": "function",
        "function": {
            "name": f"tool_{number}",
            "description": " ".join(chance.choices(_WORDS, k=8)),
            "parameters": parameters,
        },
    }
