"""Near misses: where a request leaves a declared prefix, why, and what that costs.

A request that means almost what a prefix declares looks warm to those who wrote it, and is computed
anew from the first token that differs. Nothing here quotes a text: a place is a field and an
offset, a cause is a fixed word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import AnyStr

from promptprefix.canonical import JsonValue, canonical_bytes, canonical_text
from promptprefix.lint.random_id import random_within
from promptprefix.lint.timestamp import dated_within
from promptprefix.payload import Payload
from promptprefix.request import ImmutablePart

MODEL_FIELD = "model"
TOOLS_FIELD = "toolDefinitions"
OPTIONS_FIELD = "chatTemplateOptions"
SALT_FIELD = "cacheSaltRef"

_ONE_THING = 80
"""Characters that differ at most for a date or an id among them to be what was put in."""
_ALIKE_AFTER = 16
"""Characters after white space that tell a difference in it from another one."""


class Divergence(StrEnum):
    """Why a request leaves a declared prefix."""

    MODEL = "model"
    SALT = "salt"
    OPTIONS = "other-options"
    TIMESTAMP = "timestamp"
    RANDOM_ID = "random-id"
    WHITE_SPACE = "white-space"
    LINE_ENDS = "line-ends"
    UNICODE_FORM = "unicode-form"
    CUT_SHORT = "cut-short"
    TAIL = "tail"
    EDITED = "edited-text"
    TOOL_ORDER = "tool-order"
    KEY_ORDER = "key-order"
    NUMBER_FORM = "number-form"
    TOOLS = "other-tools"


FIXES: Mapping[Divergence, str] = {
    Divergence.MODEL: "declare the prefix for this model too, or send the declared name",
    Divergence.SALT: "declare the text for the request's tenant: spec.tenant, spec.cacheSaltRef",
    Divergence.OPTIONS: "send the declared chat_template_kwargs and reasoning effort",
    Divergence.TIMESTAMP: "move the date or time into the user turn",
    Divergence.RANDOM_ID: "move the id into the user turn",
    Divergence.WHITE_SPACE: "send the declared white space; trim neither side alone",
    Divergence.LINE_ENDS: "send the declared line ends, or set normalizeRequests",
    Divergence.UNICODE_FORM: "send the declared Unicode form (NFC is usual), or set "
    "normalizeRequests",
    Divergence.CUT_SHORT: "send the whole declared text, or declare the shorter one",
    Divergence.TAIL: "move what is added into the user turn; before the tools it hides them",
    Divergence.EDITED: "send the declared text, or apply the new one",
    Divergence.TOOL_ORDER: "send the tools in the declared order",
    Divergence.KEY_ORDER: "send the keys in the declared order, or set normalizeRequests",
    Divergence.NUMBER_FORM: "spell numbers as declared (1, not 1.0), or set normalizeRequests",
    Divergence.TOOLS: "send the declared tools, all of them; offer fewer by tool_choice",
}
"""What to do, in one line each."""


@dataclass(frozen=True)
class NearMiss:
    """Where a request leaves a prefix.

    ``field`` is a content field, ``offset`` counts characters in it, of a tool in its canonical
    JSON. ``tokens_lost`` estimates what can't be reused, for a template that prints the system text
    and then the tools.
    """

    cause: Divergence
    field: str
    offset: int
    tokens_lost: int

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.cause]


def near_miss(part: ImmutablePart, model: str, declared: Payload, tokens: int) -> NearMiss | None:
    """Return where a request leaves the declared text; None if an engine reads the same of both.

    ``tokens`` are those of the declared head, 0 if unknown. Raises `CanonicalError` for a request
    that has no canonical form.
    """
    room = _Room.of(declared, tokens)
    if part.model != model:
        return room.lost(Divergence.MODEL, MODEL_FIELD)
    if canonical_bytes(part.options) != canonical_bytes(declared.options):
        return room.lost(Divergence.OPTIONS, OPTIONS_FIELD)
    if (text := text_difference(declared.system, part.system)) is not None:
        cause, at = text
        field, offset = _field_of(declared, at)
        return room.lost(cause, field, offset, before=at)
    if (tools := _tools_difference(declared.tools, part.tools)) is not None:
        cause, index, at = tools
        earlier = sum(len(_printed(tool)) for tool in declared.tools[:index])
        before = room.system + earlier + at
        return room.lost(cause, f"{TOOLS_FIELD}[{index}]", at, before=before)
    return None


def other_salt(declared: Payload, tokens: int) -> NearMiss:
    """Return the near miss of a request that means the declared text and has another salt."""
    return _Room.of(declared, tokens).lost(Divergence.SALT, SALT_FIELD)


@dataclass(frozen=True)
class _Room:
    """How long a declared text is: characters of its parts, and tokens."""

    system: int
    tools: int
    tokens: int

    @classmethod
    def of(cls, declared: Payload, tokens: int) -> _Room:
        tools = sum(len(_printed(tool)) for tool in declared.tools)
        return cls(len(declared.system), tools, tokens or declared.estimated_tokens)

    def lost(self, cause: Divergence, field: str, offset: int = 0, before: int = 0) -> NearMiss:
        whole = max(1, self.system + self.tools)
        kept = min(1.0, before / whole)
        return NearMiss(cause, field, offset, round(self.tokens * (1 - kept)))


def _field_of(declared: Payload, at: int) -> tuple[str, int]:
    """Return the field of the system text at an offset, and the offset in the field."""
    start = len(declared.system) - len(declared.defaultModeSpecs)
    if declared.defaultModeSpecs and at >= start:
        return "defaultModeSpecs", at - start
    return "systemInstructions", at


def text_difference(declared: str, sent: str) -> tuple[Divergence, int] | None:
    """Return why and where a sent text leaves the declared one; None if they are equal."""
    if declared == sent:
        return None
    one, other = canonical_text(declared), canonical_text(sent)
    if one == other:
        bare = [text.replace("\r\n", "\n").replace("\r", "\n") for text in (declared, sent)]
        ends = bare[0] == bare[1]
        return (
            Divergence.LINE_ENDS if ends else Divergence.UNICODE_FORM,
            shared_head(declared, sent),
        )
    at = shared_head(one, other)
    return _text_cause(one, other, at), at


def _text_cause(declared: str, sent: str, at: int) -> Divergence:
    if at == len(declared):
        return Divergence.TAIL
    end = _other_until(declared, sent, at)
    if dated_within(sent, at, end):
        return Divergence.TIMESTAMP
    if random_within(sent, at, end):
        return Divergence.RANDOM_ID
    if _white_space(declared, sent, at):
        return Divergence.WHITE_SPACE
    if at == len(sent):
        return Divergence.CUT_SHORT
    return Divergence.EDITED


def _other_until(declared: str, sent: str, at: int) -> int:
    """Return where in the sent text what differs ends; right after its start if it is long."""
    rest = min(len(declared), len(sent)) - at
    after = shared_head(*(text[::-1][:rest] for text in (declared, sent)))
    end = len(sent) - after
    return end if at < end <= at + _ONE_THING else at + 1


_SPACES = re.compile(r"\s*")


def _white_space(declared: str, sent: str, at: int) -> bool:
    """Return whether the texts differ at a place only in white space."""
    here = [_SPACES.match(text, at) for text in (declared, sent)]
    ends = [found.end() if found is not None else at for found in here]
    if ends == [at, at]:
        return False
    after = [
        text[end : end + _ALIKE_AFTER] for text, end in zip((declared, sent), ends, strict=True)
    ]
    return after[0] == after[1]


def shared_head(one: AnyStr, other: AnyStr) -> int:
    """Return how many characters, or bytes, two texts share from their beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _tools_difference(
    declared: Sequence[JsonValue], sent: Sequence[JsonValue]
) -> tuple[Divergence, int, int] | None:
    """Return why, in which tool and where in it the sent tools leave the declared ones."""
    one, other = [[canonical_bytes(t) for t in tools] for tools in (declared, sent)]
    for index in range(max(len(one), len(other))):
        if one[index : index + 1] != other[index : index + 1]:
            break
    else:
        return _spelling_difference(declared, sent)
    if sorted(one) == sorted(other):
        return Divergence.TOOL_ORDER, index, 0
    if index >= len(one) or index >= len(other):
        return Divergence.TOOLS, index, 0
    texts = one[index].decode(), other[index].decode()
    at = shared_head(*texts)
    cause = _text_cause(*texts, at)
    shown = (Divergence.TIMESTAMP, Divergence.RANDOM_ID, Divergence.WHITE_SPACE)
    return (cause if cause in shown else Divergence.TOOLS), index, at


def _spelling_difference(
    declared: Sequence[JsonValue], sent: Sequence[JsonValue]
) -> tuple[Divergence, int, int] | None:
    """Return where tools that mean the same are printed in another way."""
    for index, (one, other) in enumerate(zip(declared, sent, strict=True)):
        texts = _printed(one), _printed(other)
        if texts[0] == texts[1]:
            continue
        at = shared_head(*texts)
        in_order = [json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in (one, other)]
        if in_order[0] == in_order[1]:
            return Divergence.KEY_ORDER, index, at
        strings = [list(_strings(tool)) for tool in (one, other)]
        if sorted(strings[0]) == sorted(strings[1]):
            return Divergence.NUMBER_FORM, index, at
        ends = any("\r" in text for text in (*strings[0], *strings[1]))
        return (Divergence.LINE_ENDS if ends else Divergence.UNICODE_FORM), index, at
    return None


def _printed(tool: JsonValue) -> str:
    """Return a tool as templates print it: vLLM orders its own keys and those of its function."""
    if isinstance(tool, Mapping) and isinstance(function := tool.get("function"), Mapping):
        tool = {**tool, "function": dict(sorted(function.items()))}
    if isinstance(tool, Mapping):
        tool = dict(sorted(tool.items()))
    return json.dumps(tool, ensure_ascii=False)


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)
