"""Answers the question of any door about a request: go ahead, and to which endpoint."""

from __future__ import annotations

from collections.abc import Callable

from promptprefix_router.choosing.chooser import Chooser, Outcome
from promptprefix_router.command_guard import carries_command
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.decision import (
    COMMAND_REFUSED,
    SALT_UNKNOWN,
    SEVERAL_TENANTS,
    TOO_LONG_FOR_SALT,
    UNREADABLE_FOR_SALT,
    Decision,
)
from promptprefix_router.matching.matcher import Match, Matcher, Question
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.rewriting.rewriter import Rewriter, Rewriting, TooLongError
from promptprefix_router.rewriting.salt_field import UnreadableError


class Picker:
    """Decides in memory and at once; never fails.

    Refuses nothing but engine commands, requests that name several tenants, and bodies that can't
    get the cache salt that they must.

    ``observe`` is told of each request that goes on as it is, and what it stands for.
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
    ) -> None:
        self._matcher = matcher
        self._chooser = chooser
        self._rewriter = rewriter or Rewriter()
        self._tally = tally
        self._metrics = metrics
        self._clock = clock
        self._observe = observe
        self._routes = Routes()

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

    def decide(self, question: Question) -> Decision:
        """Return what shall happen to a request, and count it."""
        started = self._clock()
        decision = self._decision(question)
        self._metrics.decided(decision, self._clock() - started)
        return decision

    def rewriting(self, question: Question) -> Rewriting | None:
        """Return how a request that was decided upon is changed; None if it isn't.

        Raises `UnreadableError` or `TooLongError` for a body that can't get the salt that it must.
        """
        match = self._matcher.match(question, self._routes)
        return self._rewriter.plan(question, match).rewriting

    def _decision(self, question: Question) -> Decision:
        if carries_command(question.body, question.escaped):
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
        if plan.result is not None:
            self._metrics.rewrote(plan.result)
        if match.cause:
            self._metrics.undeclared(match.cause)
        if plan.rewriting is None:
            self._observe(question, match)
        choice = self._chooser.choose(question, plan.narrowed(match))
        return Decision(
            choice.outcome,
            match.kind,
            choice.endpoint,
            choice.fallbacks,
            rewriting=plan.rewriting,
            reason=choice.reason,
        )
