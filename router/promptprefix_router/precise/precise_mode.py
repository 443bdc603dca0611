"""The precise mode joined: which requests wait for their tokens, and whether the mode is in force.

Never silently degraded: each request that is sent by estimate instead is counted with its reason,
and a change of the mode in force is logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from promptprefix_router.choosing.prompt_chain import CHUNK_BYTES
from promptprefix_router.control.routes import Endpoint, Routes
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.precise.pod_blocks import PodBlocks
from promptprefix_router.precise.precise_metrics import PreciseMetrics
from promptprefix_router.precise.prompt_tokens import PromptTokens
from promptprefix_router.precise.token_reader import TokenReader
from promptprefix_router.precise.token_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Fallback,
    FallbackError,
    token_request,
)

FAILURES = 3
"""After so many requests in a row that engines did not answer, the mode is not in force."""

_PATHS = (CHAT_PATH, COMPLETIONS_PATH, "/v1/messages", "/v1/responses")
"""APIs that compute a prompt."""

_ENGINES_FAIL = (Fallback.TIMEOUT, Fallback.UNREACHABLE, Fallback.INVALID, Fallback.PAUSED)


class PreciseMode:
    """Tells the tokens of undeclared prompts that are long enough to matter.

    ``clock`` is monotonic seconds. ``tell`` hears whether the mode is in force when that changes.
    """

    def __init__(
        self,
        blocks: PodBlocks,
        reader: TokenReader,
        metrics: PreciseMetrics,
        clock: Callable[[], float],
        tell: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._blocks = blocks
        self._reader = reader
        self._metrics = metrics
        self._clock = clock
        self._tell = tell
        self._failures = 0
        self._in_force = False
        self._routes = Routes()
        self._log = structlog.get_logger("precise")
        blocks.changed = self._look

    def use(self, routes: Routes) -> None:
        """Ask the engines of these routes from now on."""
        self._routes = routes
        self._reader.retain(frozenset(each.address for each in routes.endpoints))
        self._look()

    def read(self, question: Question, match: Match) -> Awaitable[PromptTokens | None] | None:
        """Return what gives the tokens of a prompt, or None once they can't be had.

        None at once where there is nothing to wait for.
        """
        if len(question.body) < CHUNK_BYTES or question.path not in _PATHS:
            return None
        if match.kind is MatchKind.PARTIAL:
            self._metrics.fell_back(Fallback.PARTIAL)
            return None
        if match.kind is not MatchKind.UNDECLARED or match.model is None:
            return None
        engines = self._routes.ready(match.model)
        if not engines:
            return None
        if not self._blocks.tells(each.address for each in engines):
            self._metrics.fell_back(Fallback.NO_FEED)
            return None
        return self._tokens(question, match.model, match.salt, engines)

    async def _tokens(
        self, question: Question, model: str, salt: str, engines: Sequence[Endpoint]
    ) -> PromptTokens | None:
        started = self._clock()
        try:
            request = token_request(question.path, question.body)
            tokens = await self._reader.read(request, engines)
            prompt = PromptTokens.of(model, tokens, salt)
        except FallbackError as error:
            self._fell_back(error.reason)
            return None
        except ValueError:
            self._fell_back(Fallback.INVALID)
            return None
        self._failures = 0
        self._look()
        self._metrics.known(self._clock() - started)
        return prompt

    def _fell_back(self, reason: Fallback) -> None:
        self._metrics.fell_back(reason)
        if reason in _ENGINES_FAIL:
            self._failures += 1
            self._look()

    def _look(self) -> None:
        """Tell of a change of the mode in force."""
        in_force = self._blocks.ready and self._failures < FAILURES
        if in_force == self._in_force:
            return
        self._in_force = in_force
        self._tell(in_force)
        states = {str(state): count for state, count in self._blocks.states.items()}
        say = self._log.info if in_force else self._log.warning
        say("precise mode in force" if in_force else "precise mode not in force", pods=states)
