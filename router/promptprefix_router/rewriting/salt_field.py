"""Sets the cache salt of a request body: whatever its client wrote there, the engine reads ours."""

from __future__ import annotations

import json
from collections.abc import Sequence

from promptprefix.request import SALT_FIELD
from promptprefix_router.rewriting.json_spans import (
    Member,
    Span,
    SpanError,
    Splice,
    spliced,
    top_members,
)


class UnreadableError(ValueError):
    """A body whose salt can't be told: it is no JSON object, or nested too deep."""


def with_salt(body: bytes, salt: str) -> bytes:
    """Return ``body`` with ``salt`` as its only cache salt, or with none if that is empty.

    All else stays byte for byte, and so does a body that says it already. A name that stands twice
    has the salt at each place: no reader can find another. Raises `UnreadableError`.
    """
    encoding = json.detect_encoding(body)
    try:
        text = body.decode(encoding, "surrogatepass")
        found, whole = top_members(text)
    except (SpanError, UnicodeDecodeError) as error:
        raise UnreadableError("the body is no JSON object") from error
    salts = [member for member in found if member.name == SALT_FIELD]
    if salt:
        splices = _set(text, found, salts, whole, json.dumps(salt, ensure_ascii=False))
    else:
        splices = _removed(found, salts, whole)
    if not splices:
        return body
    return spliced(text, splices).encode(encoding, "surrogatepass")


def _set(
    text: str, found: Sequence[Member], salts: Sequence[Member], whole: Span, value: str
) -> list[Splice]:
    if not salts:
        comma = "," if found else ""
        inside = Span(whole.start + 1, whole.start + 1)
        return [Splice(inside, f'"{SALT_FIELD}":{value}{comma}')]
    return [Splice(each.value, value) for each in salts if text[slice(*each.value)] != value]


def _removed(found: Sequence[Member], salts: Sequence[Member], whole: Span) -> list[Splice]:
    """Return what leaves the other members and the white space around them as they are."""
    if not salts:
        return []
    kept = [member for member in found if member.name != SALT_FIELD]
    if not kept:
        return [Splice(Span(whole.start + 1, whole.end - 1), "")]
    last = kept[-1].start
    splices = []
    for index, member in enumerate(found):
        if member.name != SALT_FIELD:
            continue
        if member.start < last:
            # Up to the next member, with the comma after this one.
            splices.append(Splice(Span(member.start, found[index + 1].start), ""))
        else:
            # Only salts follow: from the end of what stays, with the comma before this one.
            before = found[index - 1].value.end
            splices.append(Splice(Span(before, member.value.end), ""))
    return splices
