"""The parts that decide, joined: the same behind every door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from promptprefix_router.choosing.chooser import Chooser, UndeclaredMode
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.control_link import ControlAccess
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.control.text_keeper import TextKeeper
from promptprefix_router.long_lived import LongLived
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.near_misses import NearMisses
from promptprefix_router.matching.texts import Texts
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.precise.precise_parts import PreciseParts
from promptprefix_router.rewriting.respelling import Speller
from promptprefix_router.rewriting.rewriter import Rewriter
from promptprefix_router.settings import RouterSettings


@dataclass(frozen=True)
class Brain:
    """The picker, and what others of the process share with it."""

    picker: Picker
    ledger: LoadLedger
    tally: MatchTally
    texts: TextKeeper
    near_misses: NearMisses
    metrics: RouterMetrics
    routed: LongLived
    precise: PreciseParts | None = None
    """Only in the mode ``precise``."""

    @classmethod
    def of(
        cls, settings: RouterSettings, access: ControlAccess, pool_known: Callable[[], bool]
    ) -> Self:
        """Join the parts as ``settings`` say; ``pool_known`` tells whether there is a pool."""
        memo = FingerprintMemo(settings.memo_entries)
        by_load = settings.undeclared_mode is UndeclaredMode.LEAST_LOAD
        history = None if by_load else PromptHistory(settings.history_chunks)
        ledger, tally, matcher = LoadLedger(), MatchTally(time.time), Matcher(memo)
        metrics = RouterMetrics(
            memo,
            time.monotonic,
            pool_known=pool_known,
            counted=lambda: len(tally),
            history=() if history is None else history,
            mode=settings.undeclared_mode,
            others=lambda: ledger.others,
        )
        near_misses = NearMisses(
            lambda look: asyncio.get_running_loop().call_soon(look),
            metrics,
            time.monotonic,
            time.time,
        )

        kept, routed = LongLived(), LongLived()

        def use_texts(known: Texts) -> None:
            matcher.use(known.heads, known.largest_frame)
            near_misses.use(known)
            kept.grew(len(known))

        texts = TextKeeper(
            access,
            settings.max_text_bytes,
            use_texts,
            metrics,
            time.monotonic,
        )
        precise = None
        if settings.undeclared_mode is UndeclaredMode.PRECISE:
            precise = PreciseParts.of(settings, metrics)
        chooser = _chooser(settings, ledger, history, precise)
        rewriter = Rewriter(
            Speller(texts.payload, settings.memo_entries), settings.max_request_bytes
        )
        picker = Picker(
            matcher,
            chooser,
            tally,
            metrics,
            time.perf_counter,
            rewriter,
            near_misses.saw,
            None if precise is None else precise.mode,
        )
        return cls(picker, ledger, tally, texts, near_misses, metrics, routed, precise)

    def follow(self, routes: Routes) -> None:
        """Take note of a route table that has come in force."""
        self.texts.want(routes)
        self.routed.grew(routes.prefixes + len(routes.endpoints))
        if self.precise is not None:
            self.precise.want(routes)


def _chooser(
    settings: RouterSettings,
    ledger: LoadLedger,
    history: PromptHistory | None,
    precise: PreciseParts | None,
) -> Chooser:
    blocks = None if precise is None else precise.blocks
    saturated_at = settings.shedding.saturated_at
    chooser = Chooser(ledger, history, settings.cost, time.monotonic, blocks, saturated_at)
    if precise is not None:
        precise.serve(chooser)
    return chooser
