"""Looks at a few requests after they were answered: which came near a prefix, and what they lost.

Sampled, so that it costs next to nothing: never in the time of a decision, a few times a second,
and one hundredth of the processor's time at most. All wait while a long request is looked at, so
what was found of the same parts is remembered. What is kept holds no text.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeAlias

from promptprefix.canonical import CanonicalError
from promptprefix.fingerprint import system_bytes
from promptprefix.near_miss import NearMiss, near_miss, other_salt
from promptprefix.request import ImmutablePart, UndeclaredError
from promptprefix.shapes import SHAPES
from promptprefix.wire import RoutePrefix
from promptprefix_router.doors.http_door import HttpResponse
from promptprefix_router.matching.heads import opening
from promptprefix_router.matching.matcher import (
    OTHER_MODEL,
    OTHER_SALT,
    OTHER_TEXT,
    Match,
    MatchKind,
    Question,
)
from promptprefix_router.matching.near_index import NearIndex
from promptprefix_router.matching.request_head import (
    DeclaringHead,
    DeclaringReader,
    MalformedError,
)
from promptprefix_router.matching.texts import KnownPrefix, Texts

PATH = "/near-misses"
"""Where the last examples are served, as JSON."""

EXAMPLES = 100
"""Examples that are kept."""
MAX_BODY_BYTES = 262_144
"""Longer requests are not looked at."""
INTERVALS_S = {MatchKind.UNDECLARED: 0.5, MatchKind.FINGERPRINT: 2.0}
"""Shortest time between two looks, by how the requests were matched."""
REST = 100
"""So many times as long as a look takes there is none."""

SPELLINGS = 4
"""Prefixes of one meaning that a request is compared with."""

FINDINGS = 1024
"""What was looked at last: a request of the same parts is not compared again."""

NOT_NEAR = "none"
_CAUSES = (OTHER_TEXT, OTHER_SALT, OTHER_MODEL)
_READERS = {path: DeclaringReader(shape) for path, shape in SHAPES.items()}


class NearMissMeter(Protocol):
    """Counts looks and what they find."""

    def looked(self, cause: str) -> None:
        """Count a look; ``cause`` is a fixed word, `NOT_NEAR` for one that found nothing."""


_Finding: TypeAlias = tuple[RoutePrefix, NearMiss] | None


@dataclass(frozen=True, slots=True)
class Example:
    """A request that came near a prefix. ``at`` is Unix seconds."""

    at: float
    prefix: str
    api: str
    found: NearMiss


class NearMisses:
    """Takes what the picker decided, and looks at some of it ``soon``, when the answer is sent."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        meter: NearMissMeter,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._soon = soon
        self._meter = meter
        self._clock = clock
        self._wall = wall
        self._texts = Texts()
        self._index: NearIndex | None = None
        self._findings: OrderedDict[tuple[bytes, bool, bool], _Finding] = OrderedDict()
        self._next = dict.fromkeys(INTERVALS_S, 0.0)
        self._rested = 0.0
        self._waiting: tuple[Question, Match] | None = None
        self._examples: deque[Example] = deque(maxlen=EXAMPLES)
        self._undeclared: Counter[str] = Counter()

    @property
    def examples(self) -> list[Example]:
        """The last ones, the latest first."""
        return list(reversed(self._examples))

    def use(self, texts: Texts) -> None:
        """Compare with these texts from now on."""
        self._texts = texts
        self._index = None
        self._findings.clear()

    def saw(self, question: Question, match: Match) -> None:
        """Take note of a decision, at once; it may be looked at later."""
        if match.cause:
            self._undeclared[match.cause] += 1
            if match.cause not in _CAUSES:
                return
        due = self._next.get(match.kind)
        if due is None or self._waiting is not None or not len(self._texts):
            return
        now = self._clock()
        if now < due or now < self._rested or len(question.body) > MAX_BODY_BYTES:
            return
        if question.path not in _READERS:
            return
        self._next[match.kind] = now + INTERVALS_S[match.kind]
        self._waiting = (question, match)
        self._soon(self._look)

    def answer(self) -> HttpResponse:
        """Return the examples, and how many requests were undeclared by cause, as JSON."""
        body = {
            "nearMisses": [_row(example) for example in self.examples],
            "undeclared": dict(sorted(self._undeclared.items())),
        }
        headers = (("content-type", "application/json"), ("cache-control", "no-store"))
        return HttpResponse(200, headers, json.dumps(body).encode())

    def _look(self) -> None:
        if self._waiting is None:
            return
        question, match = self._waiting
        self._waiting = None
        started = self._clock()
        found = self._found(question, match)
        self._meter.looked(NOT_NEAR if found is None else found[1].cause)
        if found is not None:
            prefix, miss = found
            self._examples.append(Example(self._wall(), prefix.name, question.path, miss))
        ended = self._clock()
        self._rested = ended + REST * (ended - started)

    def _found(self, question: Question, match: Match) -> _Finding:
        known = question.known
        try:
            head = known.opening.head if known else _READERS[question.path].read(question.body)
        except MalformedError:
            return None
        declared, salted = match.kind is MatchKind.FINGERPRINT, match.cause == OTHER_SALT
        key = (head.keys[1], declared, salted)
        if key in self._findings:
            return self._findings[key]
        found = self._findings[key] = self._compared(head, match)
        if len(self._findings) > FINDINGS:
            self._findings.popitem(last=False)
        return found

    def _compared(self, head: DeclaringHead, match: Match) -> _Finding:
        try:
            around, system = head.surroundings(), head.system()
            part = ImmutablePart(around.model, system, around.tools, around.options)
            near = self._nearest(part, match)
            found = [(each.prefix, _miss(part, match, each)) for each in near]
        except (UndeclaredError, CanonicalError):
            return None
        # One that is spelled as any of those that mean the same is no miss.
        misses = [(prefix, miss) for prefix, miss in found if miss is not None]
        return misses[0] if misses and len(misses) == len(found) else None

    def _nearest(self, part: ImmutablePart, match: Match) -> Sequence[KnownPrefix]:
        if match.kind is MatchKind.FINGERPRINT or match.cause == OTHER_SALT:
            return self._texts.known_as(part.fingerprint)[:SPELLINGS]
        if self._index is None:
            self._index = NearIndex(self._texts)
        nearest = self._index.nearest(opening(system_bytes(part.system)), part.model)
        return () if nearest is None else (nearest,)


def _miss(part: ImmutablePart, match: Match, known: KnownPrefix) -> NearMiss | None:
    text, tokens = known.text, known.prefix.tokens
    if match.cause == OTHER_SALT:
        return other_salt(text.payload, tokens)
    return near_miss(part, text.model, text.payload, tokens)


def _row(example: Example) -> dict[str, object]:
    found = asdict(example.found)
    return {
        "time": datetime.fromtimestamp(example.at, UTC).isoformat(timespec="seconds"),
        "prefix": example.prefix,
        "api": example.api,
        "cause": found["cause"],
        "field": found["field"],
        "offset": found["offset"],
        "tokensLost": found["tokens_lost"],
    }
