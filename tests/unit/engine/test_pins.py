"""The pin table against a small model of vLLM's block pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptprefix_vllm.adapters import Adapter
from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.commands import CommandError
from promptprefix_vllm.pins import MAX_PINS, MAX_RELEASES, PinTable
from promptprefix_vllm.watchlist import MAX_WATCHED

SIZE = 32


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: bytes | None = None


class FakePool:
    """Caches blocks by hash, counts references, and refuses to free what nobody holds."""

    def __init__(self, blocks: int = 100) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [FakeBlock(number) for number in range(blocks)]
        self.freed: list[int] = []

    def compute(self, names: Iterable[str]) -> tuple[bytes, ...]:
        """Caches a chain of blocks and returns its hashes; what is cached stays where it is."""
        hashes, chain = [], ""
        for name in names:
            chain += name
            digest = chain.encode()
            if self.get_cached_block(digest, [0]) is None:
                self._free_block(hashes).block_hash = digest + b"|0"
            hashes.append(digest)
        return tuple(hashes)

    def _free_block(self, chain: Sequence[bytes]) -> FakeBlock:
        """An empty block, else one that nobody holds and that is not part of ``chain``."""
        kept = {digest + b"|0" for digest in chain}
        free = [b for b in self.blocks[1:] if not b.ref_cnt and b.block_hash not in kept]
        return min(free, key=lambda block: block.block_hash is not None)

    def evict(self) -> None:
        """Other traffic takes every block that nobody holds."""
        for block in self.blocks:
            if not block.ref_cnt:
                block.block_hash = None

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[FakeBlock]) -> None:
        for block in ordered_blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self.freed.append(block.block_id)

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> list[FakeBlock] | None:
        assert groups == [0]
        wanted = block_hash + b"|0"
        found = [block for block in self.blocks if block.block_hash == wanted]
        return found[:1] or None

    def get_num_free_blocks(self) -> int:
        return sum(1 for block in self.blocks[1:] if not block.ref_cnt)

    def evict_blocks(self, block_ids: set[int]) -> None:
        for number in block_ids:
            self.blocks[number].block_hash = None


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def table(pool: FakePool) -> PinTable:
    return PinTable(PrefixCache(pool, SIZE), SIZE, budget_blocks=10)


def hold(table: PinTable, name: str, hashes: Sequence[bytes], **change: float) -> None:
    values = {"lease": 60.0, "priority": 0.0, "now": 0.0, **change}
    table.pin(
        name,
        hashes,
        lease=values["lease"],
        priority=int(values["priority"]),
        now=values["now"],
    )


def test_a_pinned_prefix_survives_pressure_and_an_unpinned_one_does_not(
    pool: FakePool, table: PinTable
) -> None:
    kept, lost = pool.compute("abc"), pool.compute("xyz")
    hold(table, "p", kept)
    pool.evict()
    assert pool.get_cached_block(kept[-1], [0])
    assert pool.get_cached_block(lost[0], [0]) is None
    pin = table.get("p")
    assert pin is not None
    assert (table.pinned_tokens(pin), table.resident_tokens(pin)) == (96, 96)
    table.unpin("p", now=1.0)
    pool.evict()
    assert pool.get_cached_block(kept[0], [0]) is None
    assert table.resident_tokens(pin) == 0


def test_shared_blocks_count_once_and_go_with_their_last_pin(
    pool: FakePool, table: PinTable
) -> None:
    hold(table, "short", pool.compute("abcd"))
    hold(table, "long", pool.compute("abcdefgh"))
    assert table.blocks_pinned == 8
    assert {block.ref_cnt for block in pool.blocks[1:9]} == {1}
    table.unpin("long", now=1.0)
    assert table.blocks_pinned == 4
    table.unpin("short", now=1.0)
    assert table.blocks_pinned == 0
    assert pool.get_num_free_blocks() == 99
    # The tail goes first, so the head is evicted last.
    assert pool.freed == [8, 7, 6, 5, 4, 3, 2, 1]


def test_over_budget_nothing_is_half_pinned(pool: FakePool, table: PinTable) -> None:
    hold(table, "p", pool.compute("abcdefgh"))
    with pytest.raises(CommandError) as refused:
        hold(table, "q", pool.compute("xyz"))
    assert refused.value.reason == "BudgetExceeded"
    assert "11 blocks" in refused.value.message
    assert "budget is 10" in refused.value.message
    assert table.blocks_pinned == 8
    assert table.get("q") is None
    hold(table, "r", pool.compute("abcdefghij"))


def test_a_pin_replaces_itself_within_the_budget(pool: FakePool, table: PinTable) -> None:
    hold(table, "p", pool.compute("abcdefgh"))
    hold(table, "p", pool.compute("uvwxyz"))
    assert table.blocks_pinned == 6
    with pytest.raises(CommandError):
        hold(table, "p", pool.compute("01234567890"))
    pin = table.get("p")
    assert pin is not None
    assert table.pinned_tokens(pin) == 6 * SIZE


def test_a_prefix_that_is_not_wholly_cached_is_not_pinned(pool: FakePool, table: PinTable) -> None:
    hashes = pool.compute("abc")
    pool.blocks[2].block_hash = None
    with pytest.raises(CommandError) as refused:
        hold(table, "p", hashes)
    assert refused.value.reason == "NotResident"
    assert "1 of 3" in refused.value.message
    assert table.blocks_pinned == 0


def test_leases(pool: FakePool, table: PinTable) -> None:
    hold(table, "p", pool.compute("ab"), lease=10, now=100)
    hold(table, "q", pool.compute("cd"), lease=20, now=100)
    assert table.release_expired(109.9) == ()
    table.renew("p", lease=30, priority=4, now=105)
    assert [pin.id for pin in table.release_expired(120)] == ["q"]
    assert [(item.id, item.reason) for item in table.releases] == [("q", "LeaseExpired")]
    assert [(pin.id, pin.priority) for pin in table.release_expired(135)] == [("p", 4)]
    assert table.blocks_pinned == 0
    with pytest.raises(CommandError, match="no pin"):
        table.renew("p", lease=1, priority=0, now=136)


def test_the_valve_takes_the_lowest_priority_then_the_least_recently_hit(
    pool: FakePool, table: PinTable
) -> None:
    hold(table, "vip", pool.compute("a"), priority=9)
    hold(table, "hit", pool.compute("b"), priority=1)
    hold(table, "never", pool.compute("c"), priority=1)
    table.record_request(pool.compute("b"), SIZE, now=5)
    order = [table.release_lowest(6) for _ in range(4)]
    assert [pin.id if pin else None for pin in order] == ["never", "hit", "vip", None]


def test_a_reset_frees_all_and_starts_a_pin_epoch(pool: FakePool, table: PinTable) -> None:
    hold(table, "p", pool.compute("ab"))
    assert (table.release_all(1.0), table.pin_epoch) == (1, 1)
    assert pool.get_num_free_blocks() == 99
    assert (table.release_all(2.0), table.pin_epoch) == (0, 2)


def test_hits_need_the_whole_pinned_prefix(pool: FakePool, table: PinTable) -> None:
    hold(table, "short", pool.compute("ab"))
    hold(table, "long", pool.compute("abcd"))
    chat = pool.compute("abcdz")
    table.record_request(chat, 3 * SIZE, now=7)
    table.record_request(chat, 4 * SIZE, now=8)
    table.record_request(pool.compute("xbcd"), 4 * SIZE, now=9)
    table.record_request((), 4 * SIZE, now=9)
    hits = {pin.id: (pin.hits, pin.last_hit) for pin in table.pins}
    assert hits == {"short": (2, 8), "long": (1, 8)}
    hold(table, "long", pool.compute("abcd"), now=20)
    assert [pin.hits for pin in table.pins] == [2, 1]
    hold(table, "long", pool.compute("abce"), now=20)
    assert [pin.hits for pin in table.pins] == [2, 0]


def matches(table: PinTable) -> dict[str, tuple[int, float | None]]:
    return {entry.id: (entry.matches, entry.last_match) for entry in table.watchlist.entries}


def test_matches_are_counted_of_what_is_no_longer_held(pool: FakePool, table: PinTable) -> None:
    hashes = pool.compute("ab")
    hold(table, "unpinned", hashes)
    hold(table, "expired", pool.compute("cd"), lease=5)
    hold(table, "valve", pool.compute("ef"), priority=-1)
    hold(table, "evicted", pool.compute("gh"))
    table.record_request((*hashes, b"turn"), 0, now=1)
    (pin, *_) = table.pins
    assert (pin.matches, pin.hits, pin.last_match, pin.last_hit) == (1, 0, 1, None)
    table.unpin("unpinned", now=2)
    table.release_lowest(3)
    table.evict("evicted", now=4)
    table.release_expired(6)
    pool.evict()
    table.record_request((*hashes, b"turn"), 0, now=7)
    table.record_request(hashes[:1], SIZE, now=8)
    table.record_request((b"g", b"gh"), 0, now=9)
    expected = {"unpinned": (2, 7), "valve": (0, None), "evicted": (1, 9), "expired": (0, None)}
    assert matches(table) == expected
    hold(table, "unpinned", pool.compute("ab"), now=10)
    hold(table, "evicted", pool.compute("xy"), now=10)
    assert {pin.id: pin.matches for pin in table.pins} == {"unpinned": 2, "evicted": 0}
    assert matches(table).keys() == {"valve", "expired"}


def test_the_watchlist_is_bounded(pool: FakePool, table: PinTable) -> None:
    hashes = pool.compute("a")
    for number in range(MAX_WATCHED + 2):
        hold(table, str(number), hashes)
        table.unpin(str(number), now=1)
    assert len(matches(table)) == MAX_WATCHED
    assert "1" not in matches(table)


def test_a_block_that_is_computed_anew_at_every_hit_is_none_less(pool: FakePool) -> None:
    table = PinTable(PrefixCache(pool, SIZE), SIZE, budget_blocks=10, dropped_blocks=1)
    hashes = pool.compute("abc")
    hold(table, "p", hashes)
    table.record_request((*hashes, b"turn"), SIZE, now=1)
    table.record_request((*hashes, b"turn"), 2 * SIZE, now=2)
    assert [(pin.matches, pin.hits, pin.last_hit) for pin in table.pins] == [(2, 1, 2)]


def test_evict_leaves_what_other_pins_hold_and_what_requests_use(
    pool: FakePool, table: PinTable
) -> None:
    hold(table, "short", pool.compute("ab"))
    hold(table, "long", pool.compute("abcd"))
    used = pool.blocks[4]
    pool.touch([used])
    pool.blocks[9].block_hash = pool.blocks[3].block_hash
    evicted = table.evict("long", now=1)
    assert table.resident_tokens(evicted) == 2 * SIZE
    assert [block.block_hash for block in (*pool.blocks[3:5], pool.blocks[9])] == [None] * 3
    assert (used.ref_cnt, table.blocks_pinned) == (1, 2)
    table.unpin("short", now=2)
    entry = table.evict("short", now=3)
    assert table.resident_tokens(entry) == 0
    assert [(item.id, item.reason) for item in table.releases] == [
        ("long", "Evicted"),
        ("short", "Unpinned"),
    ]


def test_blocks_of_a_request_whose_adapter_was_replaced(pool: FakePool, table: PinTable) -> None:
    mine, theirs = pool.compute("abc"), pool.compute("xyz")
    hold(table, "mine", mine[:2])
    hold(table, "theirs", theirs)
    table.drop_computed(mine, now=1)
    assert [pin.id for pin in table.pins] == ["theirs"]
    assert [pool.get_cached_block(digest, [0]) for digest in mine] == [None] * 3
    assert [item.reason for item in table.releases] == ["AdapterChanged"]


def test_only_pins_of_the_replaced_adapter_go(pool: FakePool, table: PinTable) -> None:
    old, other = Adapter("a", 1, "/p"), Adapter("b", 1, "/p")
    hold(table, "base", pool.compute("ab"))
    for name, adapter, text in (("old", old, "cd"), ("gone", old, "ef"), ("other", other, "gh")):
        table.pin(name, pool.compute(text), lease=60, priority=0, now=0, adapter=adapter)
    table.unpin("gone", now=1)
    assert table.release_outdated(old, now=2) == ()
    released = table.release_outdated(Adapter("a", 2, "/p"), now=3)
    assert [pin.id for pin in released] == ["old"]
    assert [pin.id for pin in table.pins] == ["base", "other"]
    assert pool.get_cached_block(b"c", [0]) is pool.get_cached_block(b"e", [0]) is None


def test_a_stripped_hash_is_reported_and_computed_again_elsewhere(
    pool: FakePool, table: PinTable
) -> None:
    hashes = pool.compute("abc")
    hold(table, "p", hashes)
    pool.blocks[2].block_hash = None
    pin = table.get("p")
    assert pin is not None
    assert (table.pinned_tokens(pin), table.resident_tokens(pin)) == (SIZE, SIZE)
    pool.compute("abc")
    assert (table.pinned_tokens(pin), table.resident_tokens(pin)) == (SIZE, 3 * SIZE)
    hold(table, "p", hashes)
    pin = table.get("p")
    assert pin is not None
    assert table.pinned_tokens(pin) == 3 * SIZE
    assert pool.blocks[2].ref_cnt == 0


def test_what_only_pins_hold(pool: FakePool, table: PinTable) -> None:
    hold(table, "p", pool.compute("abc"))
    assert table.pin_only_blocks() == 3
    pool.touch(pool.blocks[1:3])
    assert table.pin_only_blocks() == 1


def test_everything_is_bounded(pool: FakePool) -> None:
    table = PinTable(PrefixCache(pool, SIZE), SIZE, budget_blocks=10)
    hashes = pool.compute("a")
    for number in range(MAX_PINS):
        hold(table, str(number), hashes)
    with pytest.raises(CommandError) as refused:
        hold(table, "more", hashes)
    assert refused.value.reason == "TooManyPins"
    hold(table, "0", hashes)
    table.release_all(1.0)
    assert len(table.releases) == MAX_RELEASES


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

    @invariant()
    def references_are_ours(self) -> None:
        held = {item.block.block_id for pin in self.table.pins for item in pin.held}
        assert held == {block.block_id for block in self.pool.blocks if block.ref_cnt}
        assert all(block.ref_cnt <= 1 for block in self.pool.blocks)
        assert self.table.blocks_pinned == len(held) <= self.table.budget_blocks


TestPinMachine = PinMachine.TestCase
TestPinMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
