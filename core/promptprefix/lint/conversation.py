"""Rule ``conversation-in-prefix``: turns of a conversation where only fixed text belongs.

Two things give a conversation away: the role tokens of a chat template, and dialogue lines of two
speakers. Dialogue that the text itself calls an example is fixed text and left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from promptprefix.lint.hit import Hit, field_texts
from promptprefix.payload import Payload

RULE = "conversation-in-prefix"

ROLE_TOKEN = re.compile(
    r"<\|(?:im_start|im_end|im_sep|start_header_id|end_header_id|eot_id|user|assistant|system|end)"
    r"\|>"  # ChatML, Llama 3, Phi, GLM
    r"|\[/?INST\]|<</?SYS>>"  # Llama 2, Mistral
    r"|<(?:start|end)_of_turn>"  # Gemma
    r"|<｜(?:User|Assistant)｜>"  # DeepSeek
)

TURN = re.compile(
    r"^[ \t>*#_-]{0,12}(?:(?P<user>user|human)|(?P<other>assistant|ai|bot))"
    r"[*_]{0,3}[ \t]?:"
    r"|[\"']role[\"'][ \t]?:[ \t]?[\"'](?:(?P<user_json>user)|(?P<other_json>assistant))[\"']",
    re.IGNORECASE | re.MULTILINE,
)
EXAMPLE = re.compile(
    r"\b(?:examples?|samples?|few-shot|e\.g|demonstrations?|illustrations?|looks? like)\b",
    re.IGNORECASE,
)

SAME_DIALOGUE = 1_000
"""Characters between two turns that still belong to one dialogue."""
INTRODUCTION = 240
"""Characters before a dialogue in which the text may call it an example."""


def conversations(payload: Payload) -> Iterator[Hit]:
    """Yield the places where a conversation begins."""
    for path, text in field_texts(payload):
        found = [*_role_tokens(path, text)]
        if path != "toolDefinitions":
            found += _dialogues(path, text)
        yield from sorted(found, key=lambda hit: hit.offset)


def _role_tokens(path: str, text: str) -> Iterator[Hit]:
    for match in ROLE_TOKEN.finditer(text):
        yield Hit(
            RULE,
            path,
            match.start(),
            "a role token of a chat template, which ends the turn that the template opens",
            "remove it: the engine's chat template writes the role tokens",
            severity="Error",
        )


def _dialogues(path: str, text: str) -> Iterator[Hit]:
    for start in _dialogue_starts(text):
        if EXAMPLE.search(text[max(0, start - INTRODUCTION) : start]):
            continue
        yield Hit(
            RULE,
            path,
            start,
            "a dialogue between user and assistant",
            "send turns as messages after the system message; if it is a fixed example, say so "
            "in the line before it",
        )


def _dialogue_starts(text: str) -> Iterator[int]:
    """Yield where turns of two speakers begin to follow each other."""
    first = last = -1
    speakers: set[bool] = set()
    for match in TURN.finditer(text):
        if first < 0 or match.start() - last > SAME_DIALOGUE:
            first, speakers = match.start(), set()
        last = match.end()
        before = len(speakers)
        speakers.add(bool(match["user"] or match["user_json"]))
        if before == 1 and len(speakers) == 2:
            yield first
