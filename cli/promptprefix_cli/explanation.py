"""Why a request matches a declared prefix or doesn't, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from promptprefix.canonical import CanonicalError, canonical_text
from promptprefix.fingerprint import Frame
from promptprefix.near_miss import NearMiss, near_miss, shared_head
from promptprefix.request import ImmutablePart, UndeclaredError
from promptprefix_cli.declared import Declared
from promptprefix_cli.input_error import InputError
from promptprefix_cli.request_body import remedy, shape_of

MIN_SHARED = 256
"""Characters of a system text that make a request near a prefix; half of a shorter text will do."""
LEAST_SHARED = 32
"""A text may be shorter than twice this; less in common says nothing."""
TAIL = 1024
"""Of this many last characters it is asked whether they are alike."""


class Verdict(StrEnum):
    """What a router makes of a request."""

    MATCH = "match"
    """It has a declared fingerprint and the declared bytes: a full hit."""
    HEAD = "head"
    """Its system text begins with a declared one: a hit up to where its own begins."""
    NEAR_MISS = "near-miss"
    UNDECLARED = "undeclared"
    """Something in it keeps it from matching any prefix."""
    NO_MATCH = "no-match"


FINE = (Verdict.MATCH, Verdict.HEAD)
_FREE_TAIL = "what follows the declared text is computed in every request"


@dataclass(frozen=True)
class Explanation:
    """The verdict on a request.

    ``field`` and ``offset`` are of the declared text, or of the body where nothing is compared;
    ``line`` and ``column`` count from 1, 0 where there are none. Tokens are estimates.
    """

    request: str
    verdict: Verdict
    prefix: str = ""
    cause: str = ""
    field: str = ""
    offset: int = 0
    line: int = 0
    column: int = 0
    tokens: int = 0
    tokens_lost: int = 0
    fix: str = ""


def request_bodies(documents: Sequence[tuple[str, Any]]) -> list[tuple[str, Mapping[Any, Any]]]:
    """Return the labelled request bodies of an input; raise `InputError` for what is none."""
    bodies = []
    for label, document in documents:
        if not isinstance(document, Mapping) or "kind" in document or "model" not in document:
            raise InputError(label, "", "is no request body; manifests are given with -f")
        bodies.append((label, document))
    return bodies


def explained(request: str, body: Mapping[Any, Any], prefixes: Sequence[Declared]) -> Explanation:
    """Return what a router that knows ``prefixes`` makes of a request body."""
    shape = shape_of(body)
    try:
        part = shape.immutable_part(body)
        fingerprint = part.fingerprint
    except UndeclaredError as error:
        fix = f"{error.field or 'it'} {remedy(error.cause, shape)}"
        return Explanation(
            request, Verdict.UNDECLARED, cause=error.cause, field=error.field, fix=fix
        )
    except CanonicalError as error:
        return Explanation(request, Verdict.UNDECLARED, cause="not-canonical", fix=str(error))
    for each in prefixes:
        if each.fingerprint == fingerprint:
            return _compared(request, part, each)
    if (head := _longest_head(part, prefixes)) is not None:
        tokens = head.payload.estimated_tokens
        return Explanation(request, Verdict.HEAD, head.document, tokens=tokens, fix=_FREE_TAIL)
    nearest = _nearest(part, prefixes)
    if nearest is None:
        fix = "declare its text, or send that of a declared prefix"
        return Explanation(request, Verdict.NO_MATCH, fix=fix)
    return _compared(request, part, nearest)


def _compared(request: str, part: ImmutablePart, prefix: Declared) -> Explanation:
    tokens = prefix.payload.estimated_tokens
    miss = near_miss(part, prefix.model, prefix.payload, 0)
    if miss is None:
        return Explanation(request, Verdict.MATCH, prefix.document, tokens=tokens)
    line, column = _place(prefix, miss)
    return Explanation(
        request,
        Verdict.NEAR_MISS,
        prefix.document,
        miss.cause,
        miss.field,
        miss.offset,
        line,
        column,
        tokens,
        miss.tokens_lost,
        miss.fix,
    )


def _place(prefix: Declared, miss: NearMiss) -> tuple[int, int]:
    text = getattr(prefix.payload, miss.field, None)
    if miss.field not in ("systemInstructions", "defaultModeSpecs") or text is None:
        return 0, 0
    before = canonical_text(text)[: miss.offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _longest_head(part: ImmutablePart, prefixes: Sequence[Declared]) -> Declared | None:
    frame = Frame.of(part.model, part.tools, part.options)
    text = canonical_text(part.system)
    found: Declared | None = None
    for each in prefixes:
        declared = canonical_text(each.payload.system)
        if not declared or not text.startswith(declared):
            continue
        if Frame.of(each.model, each.payload.tools, each.payload.options) != frame:
            continue
        if found is None or len(declared) > len(canonical_text(found.payload.system)):
            found = each
    return found


def _nearest(part: ImmutablePart, prefixes: Sequence[Declared]) -> Declared | None:
    text = canonical_text(part.system)
    best: tuple[bool, int] = (False, 0)
    found: Declared | None = None
    for each in prefixes:
        declared = canonical_text(each.payload.system)
        shared = max(shared_head(declared, text), shared_head(_reversed(declared), _reversed(text)))
        near = shared >= max(LEAST_SHARED, min(MIN_SHARED, len(declared) // 2))
        rank = (each.model == part.model, shared)
        if near and rank > best:
            best, found = rank, each
    return found


def _reversed(text: str) -> str:
    return text[: -TAIL - 1 : -1]
