"""The pin table against a small model of vLLM's block pool."""

from __future__ import annotations

import pytest

from promptprefix_vllm.adapters import Adapter
from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.commands import CommandError
from promptprefix_vllm.pins import MAX_PINS, MAX_RELEASES, PinTable
from promptprefix_vllm.watchlist import MAX_WATCHED

from .fake_pool import SIZE, FakePool, hold


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def table(pool: FakePool) -> PinTable:
    return PinTable(PrefixCache(pool, SIZE), SIZE, budget_blocks=10)


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
