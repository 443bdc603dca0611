"""Own prefills: in chunks that users' requests overtake, and known to the plugin as ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from promptprefix_sidecar.actions import Policy
from promptprefix_sidecar.board import Board
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.engine_api import EngineApi, EngineError, Prefilled
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.key_file import KeyFileError
from promptprefix_sidecar.own_traffic import OwnTraffic
from promptprefix_sidecar.pin_commander import PinCommander
from promptprefix_sidecar.provenance import Progress
from promptprefix_sidecar.snapshot import PluginStatus


def chunk_ends(tokens: int, block_size: int, chunk_tokens: int) -> Iterator[int]:
    """Yield after how many tokens each chunk of a head ends, in whole blocks; the last at its end.

    ``block_size`` is 0 if unknown: then it is one chunk.
    """
    if block_size:
        step = max(block_size, chunk_tokens - chunk_tokens % block_size)
        yield from range(step, tokens, step)
    yield tokens


class Prefiller:
    """Sends and counts prefills. Every method raises `EngineError` and nothing else.

    A plugin holds them back while users wait, and takes them for nobody's use of a prefix. Without
    one the sidecar waits itself between two chunks.
    """

    def __init__(
        self,
        board: Board,
        engine: EngineApi,
        commander: PinCommander,
        traffic: OwnTraffic,
        policy: Policy,
        clock: Clock,
    ) -> None:
        self._board = board
        self._engine = engine
        self._commander = commander
        self._traffic = traffic
        self._policy = policy
        self._clock = clock
        self._changed = board.subscribe()

    async def chunks(
        self, model: str, head: Head, cache_salt: str, *, report_cached: bool = False
    ) -> AsyncIterator[tuple[int, Prefilled]]:
        """Prefill the head chunk by chunk; yield after each how many tokens it was about."""
        for number, end in enumerate(self._ends(head)):
            if number:
                await self._let_users_go_first()
            ids = head.prompt_ids[: end + 1]
            yield end, await self.send(model, ids, cache_salt, report_cached=report_cached)

    async def approach(self, model: str, head: Head, cache_salt: str) -> Progress:
        """Prefill all but the last chunk of the head, which a pin computes itself."""
        progress = Progress()
        for end in self._ends(head):
            if end < head.tokens:
                done = await self.send(model, head.prompt_ids[: end + 1], cache_salt)
                progress = progress.plus(end, done)
                await self._let_users_go_first()
        return progress

    async def send(
        self, model: str, prompt_ids: Sequence[int], cache_salt: str, *, report_cached: bool = False
    ) -> Prefilled:
        """Prefill in one request."""
        done = await self.ask(model, prompt_ids, cache_salt, report_cached=report_cached)
        self._traffic.count(done)
        return done

    async def ask(
        self, model: str, prompt_ids: Sequence[int], cache_salt: str, *, report_cached: bool = False
    ) -> Prefilled:
        """Prefill in one request that the caller counts.

        A plugin that counts matches gets it as a command and nothing else: a plain request would
        count as a user's.
        """
        plugin = self._board.snapshot.plugin
        report = plugin.report
        if plugin.status is not PluginStatus.WORKING or report is None or not report.evicts:
            return await self._engine.prefill(
                model, prompt_ids, cache_salt=cache_salt, report_cached=report_cached
            )
        try:
            done = await self._commander.warm(
                model, report.epoch, prompt_ids, cache_salt, report_cached=report_cached
            )
        except KeyFileError as error:
            raise EngineError(f"no command can be signed: {error}") from error
        if done.answer is not None and not done.answer.ok:
            self._traffic.count(done)
            told = f"{done.answer.reason}: {done.answer.message}"
            raise EngineError(f"the pin plugin refused a warm-up ({told})")
        return done

    def _ends(self, head: Head) -> tuple[int, ...]:
        block_size = self._board.snapshot.block_size
        return tuple(chunk_ends(head.tokens, block_size, self._policy.warm_chunk_tokens))

    async def _let_users_go_first(self) -> None:
        """Wait while users' requests wait, for a bounded time. The plugin does so by itself."""
        until = self._clock.monotonic() + self._policy.soft_wait_s
        while not self._held_back and self._board.snapshot.engine.waiting:
            left = until - self._clock.monotonic()
            if left <= 0 or not await self._changed.wait(left):
                return

    @property
    def _held_back(self) -> bool:
        plugin = self._board.snapshot.plugin
        return plugin.report is not None and plugin.report.evicts
