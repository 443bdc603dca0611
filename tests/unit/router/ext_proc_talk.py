"""One side of the endpoint-picker protocol: what a gateway says, and a picker that answers it."""

from __future__ import annotations

from collections.abc import Sequence

from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.decision import COMMAND_REFUSED, Decision
from promptprefix_router.gateway.ext_proc_events import (
    Answer,
    BodyMode,
    BodyModes,
    Event,
    RequestBody,
    RequestHead,
    RequestHeadAnswer,
    Steering,
)
from promptprefix_router.gateway.ext_proc_exchange import Exchange, Steps
from promptprefix_router.gateway.hold_budget import HoldBudget
from promptprefix_router.matching.matcher import MatchKind, Question

from .samples import endpoint, routes

LIMIT = 100
PLACE = Steering("10.0.0.1:8000,10.0.0.2:8000")
FIRST, SECOND = routes(endpoint(1), endpoint(2)).endpoints
TOLD = "least-loaded;match=undeclared"
NAMED = "known"
COMMAND = b"command"


class Asked:
    """A picker that remembers its questions; it refuses `COMMAND` and rewrites to ``becomes``."""

    def __init__(self, becomes: bytes | None = None) -> None:
        self.questions: list[Question] = []
        self.becomes = becomes

    def resolves(self, name: str, tenant: str) -> bool:
        """Know one name."""
        return name == NAMED

    def rewritten(self, decision: Decision, body: bytes) -> bytes | None:
        """Return what the test says."""
        assert decision.endpoint is FIRST
        assert body == self.questions[-1].body
        return self.becomes

    def decide(self, question: Question) -> Decision:
        """Pick the first endpoint, with the second behind it."""
        self.questions.append(question)
        if question.body == COMMAND:
            return COMMAND_REFUSED
        return Decision(Outcome.LEAST_LOADED, MatchKind.UNDECLARED, FIRST, (SECOND,))


class Talk(Exchange):
    """An exchange whose questions are decided at once."""

    def __init__(self, asked: Asked, budget: HoldBudget) -> None:
        super().__init__(asked, LIMIT, budget)
        self._asked = asked

    def feed(self, event: Event) -> Sequence[Answer]:
        """Return the answers to ``event``."""
        return self._at_once(self.steps(event))

    def hurry(self) -> Sequence[Answer]:
        """Return the answers when the client takes too long."""
        return self._at_once(self.hurried()) if self.holding else ()

    def _at_once(self, steps: Steps) -> Sequence[Answer]:
        try:
            question = next(steps)
            while True:
                question = steps.send(self._asked.decide(question))
        except StopIteration as end:
            answers: Sequence[Answer] = end.value
            return answers


def exchange(asked: Asked, budget: HoldBudget | None = None) -> Talk:
    """Return a new exchange."""
    return Talk(asked, budget or HoldBudget(10 * LIMIT))


def head(
    request: BodyMode = BodyMode.NONE, response: BodyMode = BodyMode.NONE, **fields: object
) -> RequestHead:
    """Return the headers of a request in known modes."""
    return RequestHead(path="/p", modes=BodyModes(request, response), **fields)  # type: ignore[arg-type]


def modes(request: BodyMode, response: BodyMode = BodyMode.NONE) -> BodyModes:
    """Return modes as an override."""
    return BodyModes(request, response)


BUFFERED, PARTIAL, STREAMED = BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED
DUPLEX, NONE = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE
GO_ON = RequestHeadAnswer()
STEER = RequestHeadAnswer(PLACE)
BODY, MORE, END = RequestBody(b"12345"), RequestBody(b"678"), RequestBody(b"90", end_of_stream=True)
LONG = b"x" * (LIMIT + 1)
