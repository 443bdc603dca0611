"""Answers the question of any door about a request: go ahead, and to which endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import NamedTuple, Protocol

from promptprefix_router.choosing.chooser import Chooser, Outcome
from promptprefix_router.command_guard import carries_command
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.decision import (
    COMMAND_REFUSED,
    SALT_UNKNOWN,
    SATURATED,
    SEVERAL_TENANTS,
    TOO_LONG_FOR_SALT,
    UNREADABLE_FOR_SALT,
    Decision,
)
from promptprefix_router.matching.matcher import Match, Matcher, Question
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.precise.prompt_tokens import PromptTokens
from promptprefix_router.rewriting.rewriter import (
    RewritePlan,
    Rewriter,
    Rewriting,
    TooLongError,
)
from promptprefix_router.rewriting.salt_field import UnreadableError


class TokenSource(Protocol):
    """Who knows how to learn the tokens of a prompt."""

    def read(self, question: Question, match: Match) -> Awaitable[PromptTokens | None] | None:
        """Return what gives the tokens, None once they can't be had; None for nothing to wait for.

        Never fails.
        """


class _Considered(NamedTuple):
    match: Match
    plan: RewritePlan


class Picker:
    """Decides in memory and at once, but for the tokens of some prompts; never fails.

    Refuses nothing but engine commands, requests that name several tenants, bodies that can't get
    the cache salt that they must, and under overload requests that are sheddable.

    ``observe`` is told of each request that goes on as it is, and what it stands for. Without
    ``tokens`` nothing is ever waited for.
    """

    def __init__(
        self,
        matcher: Matcher,
        chooser: Chooser,
        tally: MatchTally,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        rewriter: Rewriter | None = None,
        observe: Callable[[Question, Match], None] = lambda _question, _match: None,
        tokens: TokenSource | None = None,
    ) -> None:
        self._matcher = matcher
        self._chooser = chooser
        self._rewriter = rewriter or Rewriter()
        self._tally = tally
        self._metrics = metrics
        self._clock = clock
        self._observe = observe
        self._tokens = tokens
        self._routes = Routes()
        self._saturated = cycle(SATURATED)

    @property
    def routes(self) -> Routes:
        """The route table in force."""
        return self._routes

    def use(self, routes: Routes) -> None:
        """Decide by ``routes`` from now on."""
        self._routes = routes
        self._chooser.use(routes)
        self._rewriter.retain(routes.contents)
        self._tally.retain(routes.ids)

    def consult(self, question: Question) -> Decision | Awaitable[Decision]:
        """Return what shall happen to a request, and count it.

        Where its prompt's tokens are waited for, return what gives that.
        """
        started = self._clock()
        considered = self._considered(question)
        if self._tokens is not None and isinstance(considered, _Considered):
            tokens = self._tokens.read(question, considered.match)
            if tokens is not None:
                return self._decided_later(question, considered, started, tokens)
        return self._decided(question, considered, started)

    def rewriting(self, question: Question) -> Rewriting | None:
        """Return how a request that was decided upon is changed; None if it isn't.

        Raises `UnreadableError` or `TooLongError` for a body that can't get the salt that it must.
        """
        match = self._matcher.match(question, self._routes)
        return self._rewriter.plan(question, match).rewriting

    async def _decided_later(
        self,
        question: Question,
        considered: _Considered,
        started: float,
        tokens: Awaitable[PromptTokens | None],
    ) -> Decision:
        return self._decided(question, considered, started, await tokens)

    def _decided(
        self,
        question: Question,
        considered: _Considered | Decision,
        started: float,
        prompt: PromptTokens | None = None,
    ) -> Decision:
        decision = (
            self._chosen(question, considered, prompt)
            if isinstance(considered, _Considered)
            else considered
        )
        self._metrics.decided(decision, self._clock() - started)
        return decision

    def _considered(self, question: Question) -> _Considered | Decision:
        if carries_command(question.body, question.traces):
            return COMMAND_REFUSED
        # Doors join equal headers with commas: whose word counts can't be told.
        if "," in question.tenant:
            return SEVERAL_TENANTS
        # Without a body nothing is computed.
        if (question.body or question.partial) and self._routes.lacks_salt(question.tenant):
            return SALT_UNKNOWN
        match = self._matcher.match(question, self._routes)
        self._tally.note(match.ids)
        try:
            plan = self._rewriter.plan(question, match)
        except TooLongError:
            return Decision(Outcome.REFUSED, match.kind, refusal=TOO_LONG_FOR_SALT)
        except UnreadableError:
            return Decision(Outcome.REFUSED, match.kind, refusal=UNREADABLE_FOR_SALT)
        if question.sheddable and self._chooser.saturated(question, match):
            return Decision(Outcome.SHED, match.kind, refusal=next(self._saturated))
        if plan.result is not None:
            self._metrics.rewrote(plan.result)
        if match.cause:
            self._metrics.undeclared(match.cause)
        if plan.rewriting is None:
            self._observe(question, match)
        return _Considered(match, plan)

    def _chosen(
        self, question: Question, considered: _Considered, prompt: PromptTokens | None
    ) -> Decision:
        match, plan = considered
        choice = self._chooser.choose(question, plan.narrowed(match), prompt)
        return Decision(
            choice.outcome,
            match.kind,
            choice.endpoint,
            choice.fallbacks,
            rewriting=plan.rewriting,
            reason=choice.reason,
        )
