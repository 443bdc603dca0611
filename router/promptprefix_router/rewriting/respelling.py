"""Which requests are respelled: those that mean a normalising prefix and have other bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from promptprefix.payload import Payload
from promptprefix.shapes import SHAPES
from promptprefix.shapes.shape import Shape
from promptprefix.wire import RoutePrefix
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.matching.request_head import DeclaringReader, MalformedError
from promptprefix_router.rewriting.declared_text import DeclaredText
from promptprefix_router.rewriting.normalising import Obstacle, ObstacleError, normalised

_READERS = {path: DeclaringReader(shape) for path, shape in SHAPES.items()}

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class RewriteResult(StrEnum):
    """What came of a request that is to be changed; words of a metric."""

    REWRITTEN = "rewritten"
    AS_DECLARED = "as-declared"
    """An engine reads it as the declared text already."""
    NO_CONTENT = "no-content"
    """The declared text has not come from the operator."""
    TOO_LONG = "too-long"
    """The new body would be longer than `MAX_REQUEST_BYTES`."""
    NOT_STRICT = Obstacle.NOT_STRICT.value
    PARTS = Obstacle.PARTS.value
    OTHER_MEANING = Obstacle.OTHER_MEANING.value
    SALTED = "salted"
    """It got its prefix's or its tenant's cache salt."""
    UNSALTED = "unsalted"
    """It lost the cache salt of its client's own."""


@dataclass(frozen=True, slots=True)
class Respelling:
    """The declared spelling of a request with ``fingerprint``."""

    shape: Shape
    declared: DeclaredText = field(repr=False)
    fingerprint: str

    def apply(self, body: bytes) -> bytes:
        """Return the changed body. Raises `ObstacleError`: then it goes on as it is."""
        return normalised(body, self.shape, self.declared, self.fingerprint)


@dataclass(frozen=True, slots=True)
class SpellingPlan:
    """What is to come of a request's spelling: it stays without a ``respelling``.

    ``result`` says why it stays; None where no prefix wants it changed, and where it is changed.
    ``prefix`` is the one whose bytes it has or gets; pods that hold it hit.
    """

    respelling: Respelling | None = None
    result: RewriteResult | None = None
    prefix: RoutePrefix | None = None


UNTOUCHED = SpellingPlan()


class Speller:
    """Plans by the declared texts, which ``payload_of`` returns by content digest if it has them.

    Which bytes need a change is remembered for ``capacity`` immutable parts.
    """

    def __init__(self, payload_of: Callable[[str], Payload | None], capacity: int) -> None:
        self._payload_of = payload_of
        self._texts: dict[str, DeclaredText] = {}
        self._results: _Recent[tuple[bytes, str], RewriteResult] = _Recent(capacity)

    def __len__(self) -> int:
        """Return how many immutable parts are remembered."""
        return len(self._results)

    def retain(self, contents: Collection[str]) -> None:
        """Forget the texts whose digests are not among ``contents``."""
        for gone in self._texts.keys() - set(contents):
            del self._texts[gone]

    def plan(self, question: Question, match: Match) -> SpellingPlan:
        """Return what is to come of a request; never fails."""
        if match.kind is not MatchKind.FINGERPRINT:
            return UNTOUCHED
        prefix = next((each for each in match.prefixes if each.normalize), None)
        if prefix is None:
            return UNTOUCHED
        declared = self._declared(prefix.content_digest)
        if declared is None:
            return SpellingPlan(result=RewriteResult.NO_CONTENT)
        respelling = Respelling(SHAPES[question.path], declared, prefix.fingerprint)
        result = self._result(question, respelling, prefix.content_digest)
        if result is RewriteResult.REWRITTEN:
            return SpellingPlan(respelling, prefix=prefix)
        alike = prefix if result is RewriteResult.AS_DECLARED else None
        return SpellingPlan(result=result, prefix=alike)

    def _declared(self, digest: str) -> DeclaredText | None:
        known = self._texts.get(digest)
        if known is None:
            payload = self._payload_of(digest)
            if payload is None:
                return None
            try:
                known = self._texts[digest] = DeclaredText.of(payload)
            except ValueError:
                return None
        return known

    def _result(self, question: Question, respelling: Respelling, digest: str) -> RewriteResult:
        """Return what comes of the body."""
        try:
            head = _READERS[question.path].read(question.body)
        except MalformedError:
            return RewriteResult.NOT_STRICT
        # What stands twice is not all in the key.
        if head.ambiguous:
            return _tried(question.body, respelling)
        key = (head.keys[1], digest)
        known = self._results.get(key)
        if known is None:
            known = _tried(question.body, respelling)
            # What is not strict may stand elsewhere in the body.
            if known is not RewriteResult.NOT_STRICT:
                self._results.keep(key, known)
        return known


def _tried(body: bytes, respelling: Respelling) -> RewriteResult:
    try:
        same = respelling.apply(body) is body
        return RewriteResult.AS_DECLARED if same else RewriteResult.REWRITTEN
    except ObstacleError as error:
        return RewriteResult(error.obstacle)


class _Recent(Generic[_Key, _Value]):
    """Values by key, none of them None; the least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: _Key) -> _Value | None:
        """Return the value of ``key`` if it is known."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def keep(self, key: _Key, value: _Value) -> None:
        """Remember a value."""
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
