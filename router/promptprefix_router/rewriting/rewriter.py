"""What of a request's body is changed on its way to the engine, and how.

Two things: another spelling of what a normalising prefix declares, and the cache salt, which is
the router's word and never the client's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from promptprefix.wire import RoutePrefix
from promptprefix_router.matching.matcher import Match, Question
from promptprefix_router.rewriting.normalising import ObstacleError
from promptprefix_router.rewriting.respelling import (
    UNTOUCHED,
    Respelling,
    RewriteResult,
    Speller,
)
from promptprefix_router.rewriting.salt_field import UnreadableError, with_salt

TEXT_MANNER = "text"
"""A request may also pass as it is: its spelling changes, or a salt of its client's own goes."""
SALT_MANNER = "salt"
"""A request must not pass without the salt that it gets."""

UNCHANGED = "none"
"""A tenant's request passes as it is, and only because the picker has seen it."""


class TooLongError(ValueError):
    """With its salt the body would be longer than the limit."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A body for the engine, and what came of the client's."""

    body: bytes = field(repr=False)
    results: tuple[RewriteResult, ...]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """How a body is changed: its spelling, and its cache ``salt``.

    An empty salt is removed, None stays as it is.
    """

    respelling: Respelling | None = None
    salt: str | None = field(default=None, repr=False)

    @property
    def manner(self) -> str:
        """Whether the request may pass unchanged, in a fixed word."""
        return SALT_MANNER if self.salt else TEXT_MANNER

    def apply(self, body: bytes, limit: int) -> Rewritten:
        """Return the changed body, of at most ``limit`` bytes; it was planned for this very body.

        What makes it too long is the spelling: then it keeps its own.
        """
        if self.salt is None:
            return self._respelled(body, limit)
        result = RewriteResult.SALTED if self.salt else RewriteResult.UNSALTED
        salted = with_salt(body, self.salt)
        spelled = self._respelled(salted, limit)
        return Rewritten(spelled.body, (*spelled.results, result))

    def _respelled(self, body: bytes, limit: int) -> Rewritten:
        if self.respelling is None:
            return Rewritten(body, ())
        try:
            changed = self.respelling.apply(body)
        except ObstacleError as error:
            return Rewritten(body, (RewriteResult(error.obstacle),))
        if len(changed) > limit:
            return Rewritten(body, (RewriteResult.TOO_LONG,))
        return Rewritten(changed, (RewriteResult.REWRITTEN,))


def rewritten(
    rewriting: Rewriting, body: bytes, limit: int, count: Callable[[RewriteResult], None]
) -> bytes | None:
    """Return the changed body, of at most ``limit`` bytes, or None to leave it; ``count`` hears."""
    made = rewriting.apply(body, limit)
    for result in made.results:
        count(result)
    return None if made.body is body else made.body


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What is to come of a body: unchanged without a ``rewriting``.

    ``result`` says why a spelling stays. ``prefix`` is the one whose bytes it has or gets.
    """

    rewriting: Rewriting | None = None
    result: RewriteResult | None = None
    prefix: RoutePrefix | None = None

    def narrowed(self, match: Match) -> Match:
        """Return ``match`` for pods that hold the very bytes that the request will have."""
        if self.prefix is None:
            return match
        return replace(match, digests=frozenset(self.prefix.token_digests))


UNTOUCHED_PLAN = RewritePlan()
"""What comes of most bodies."""


class Rewriter:
    """Plans what is changed. ``speller`` knows the declared texts, ``limit`` is that of bodies."""

    def __init__(self, speller: Speller | None = None, limit: int = sys.maxsize) -> None:
        self._speller = speller
        self._limit = limit

    def retain(self, contents: Collection[str]) -> None:
        """Forget the texts whose digests are not among ``contents``."""
        if self._speller is not None:
            self._speller.retain(contents)

    def plan(self, question: Question, match: Match) -> RewritePlan:
        """Return what is to come of a body.

        Raises `UnreadableError` or `TooLongError` for one that can't get the salt that it must.
        """
        salt = self._salt(question, match.salt)
        if self._speller is None:
            return UNTOUCHED_PLAN if salt is None else RewritePlan(Rewriting(salt=salt))
        spelling = self._speller.plan(question, match)
        if spelling is UNTOUCHED and salt is None:
            return UNTOUCHED_PLAN
        if spelling.respelling is None and salt is None:
            return RewritePlan(None, spelling.result, spelling.prefix)
        rewriting = Rewriting(spelling.respelling, salt)
        return RewritePlan(rewriting, spelling.result, spelling.prefix)

    def _salt(self, question: Question, salt: str) -> str | None:
        """Return the salt to be set, or the empty one to be removed; None to do nothing."""
        body = question.body
        if question.partial:
            if salt:
                raise TooLongError
            return None
        # Without a body nothing is computed.
        if not body or (not salt and not question.traces.salt):
            return None
        try:
            changed = with_salt(body, salt)
        except UnreadableError:
            if salt:
                raise
            # An engine reads no salt either where there is no object.
            return None
        if len(changed) > self._limit:
            raise TooLongError
        return None if changed is body else salt
