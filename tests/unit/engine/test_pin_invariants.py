"""Pins in whatever order: what holds of the table and the pool after every step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.commands import CommandError
from promptprefix_vllm.pins import PinTable

from .fake_pool import SIZE, FakePool, hold


class PinMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, our references in the pool are exactly the table's."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = FakePool(40)
        self.table = PinTable(PrefixCache(self.pool, SIZE), SIZE, budget_blocks=8)
        self.now = 0.0

    @rule(name=st.sampled_from("pqr"), text=st.text("ab", min_size=1, max_size=6))
    def pin(self, name: str, text: str) -> None:
        try:
            hold(self.table, name, self.pool.compute(text), lease=5, now=self.now)
        except CommandError as refused:
            if refused.reason != "BudgetExceeded":
                raise

    @rule(name=st.sampled_from("pqr"))
    def unpin(self, name: str) -> None:
        if self.table.get(name):
            self.table.unpin(name, now=self.now)

    @rule(name=st.sampled_from("pqr"))
    def evict(self, name: str) -> None:
        if self.table.get(name) or self.table.watchlist.get(name):
            entry = self.table.evict(name, now=self.now)
            held = {item.cached_as for pin in self.table.pins for item in pin.held}
            for digest in entry.hashes:
                found = self.pool.get_cached_block(digest, [0])
                assert found is None or found[0].block_hash in held

    @rule()
    def wait(self) -> None:
        self.now += 2
        self.table.release_expired(self.now)

    @rule()
    def valve(self) -> None:
        self.table.release_lowest(self.now)

    @rule()
    def reset(self) -> None:
        self.table.release_all(self.now)

    @rule()
    def pressure(self) -> None:
        self.pool.evict()

    @rule(number=st.integers(1, 39))
    def strip(self, number: int) -> None:
        self.pool.blocks[number].block_hash = None

    @invariant()
    def an_id_is_pinned_or_watched(self) -> None:
        watched = {entry.id for entry in self.table.watchlist.entries}
        assert watched.isdisjoint(pin.id for pin in self.table.pins)

    @rule(name=st.sampled_from("pqr"), text=st.text("ab", min_size=1, max_size=9))
    def ask_for_room(self, name: str, text: str) -> None:
        hashes = [text[:end].encode() for end in range(1, len(text) + 1)]
        others = [pin.hashes for pin in self.table.pins if pin.id != name]
        fits = len(set(hashes).union(*others)) <= self.table.budget_blocks
        try:
            self.table.check_budget(name, hashes)
        except CommandError as refused:
            if refused.reason != "BudgetExceeded":
                raise
            fits = not fits
        assert fits

    @invariant()
    def references_are_ours(self) -> None:
        held = {item.block.block_id for pin in self.table.pins for item in pin.held}
        assert held == {block.block_id for block in self.pool.blocks if block.ref_cnt}
        assert all(block.ref_cnt <= 1 for block in self.pool.blocks)
        assert self.table.blocks_pinned == len(held) <= self.table.budget_blocks


TestPinMachine = PinMachine.TestCase
TestPinMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
