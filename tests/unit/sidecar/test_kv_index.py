"""The index of resident blocks: cases, and invariants against a plain model of a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from promptprefix.tokens import token_bytes, token_digest
from promptprefix_sidecar.kv_events.events import BlockHash, Cleared, Event, Removed, Stored
from promptprefix_sidecar.kv_events.index import HeadKey, Index, Residency, Standing

B = 2
TEXT = (1, 2, 3, 4, 5, 6)


def key(tokens: Sequence[int], lora: str = "", salt: str = "") -> HeadKey:
    return HeadKey(token_digest(tokens), lora, salt)


def watching(*heads: Sequence[int]) -> Index:
    index = Index()
    index.watch({key(tokens): token_bytes(tokens) for tokens in heads})
    return index


def name(tokens: Sequence[int], salt: str = "", lora: str = "") -> bytes:
    return repr((tuple(tokens), salt, lora)).encode()


def stored(
    tokens: Sequence[int],
    start: int = 0,
    *,
    size: int = B,
    salt: str = "",
    lora: str = "",
    group: int = 0,
    kind: str = "",
    medium: str = "GPU",
) -> Stored:
    """Return the event of ``tokens`` from place ``start`` on."""
    ends = range(start + size, len(tokens) + 1, size)
    return Stored(
        hashes=tuple(name(tokens[:end], salt, lora) for end in ends),
        parent=name(tokens[:start], salt, lora) if start else None,
        tokens=token_bytes(tokens[start : start + size * len(ends)]),
        block_size=size,
        medium=medium,
        lora=lora,
        salt="" if start else salt,
        group=group,
        kind=kind,
    )


def removed(tokens: Sequence[int], medium: str = "GPU", group: int = 0) -> Removed:
    return Removed((name(tokens),), medium, group)


def test_a_prefill_in_chunks_is_followed() -> None:
    index = watching(TEXT)
    assert index.residency(key(TEXT)) == Residency()
    index.apply([stored(TEXT[:2])])
    assert index.residency(key(TEXT)) == Residency(Standing.UNKNOWN, 2)
    index.apply([stored((*TEXT, 7, 8), 2)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)
    assert index.blocks == 3
    assert index.take_changed() == {key(TEXT): Residency(Standing.RESIDENT, 6)}
    assert index.take_changed() == {}


def test_a_removed_block_cuts_the_head_and_a_new_prefill_mends_it() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT), removed(TEXT[:4])])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 2)
    index.apply([stored(TEXT, 2)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)


def test_a_second_copy_keeps_a_removal_from_being_a_loss() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT), stored(TEXT), removed(TEXT)])
    assert index.residency(key(TEXT)) == Residency(Standing.DOUBTFUL, 4)
    index.apply([removed(TEXT[:2]), Cleared()])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 0)


def test_what_a_report_told_of_is_doubtful_when_it_goes() -> None:
    index = watching(TEXT)
    index.expect_report([key(TEXT)])
    index.apply([stored(TEXT)])
    index.expect_report([])
    index.apply([removed(TEXT)])
    assert index.residency(key(TEXT)).standing is Standing.DOUBTFUL
    index.apply([stored(TEXT, 4)])
    index.apply([removed(TEXT)])
    assert index.residency(key(TEXT)).standing is Standing.LOST


def test_after_missed_events_nothing_is_known() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT)])
    index.take_changed()
    index.forget()
    assert (index.blocks, index.take_changed()) == (0, {key(TEXT): Residency()})
    index.apply([removed(TEXT), stored(TEXT, 2)])
    assert index.residency(key(TEXT)) == Residency()


def test_shared_beginnings_are_kept_once_and_known_to_a_later_head() -> None:
    other = (*TEXT[:4], 9, 9)
    index = watching(TEXT)
    index.apply([stored(TEXT)])
    index.watch({key(TEXT): token_bytes(TEXT), key(other): token_bytes(other)})
    assert index.residency(key(other)) == Residency(Standing.UNKNOWN, 4)
    index.apply([stored(other, 4)])
    assert index.residency(key(other)) == Residency(Standing.RESIDENT, 6)
    assert index.blocks == 4
    index.apply([removed(TEXT[:2])])
    assert index.residency(key(TEXT)) == index.residency(key(other)) == Residency(Standing.LOST, 0)
    index.watch({key(other): token_bytes(other)})
    assert index.blocks == 3
    index.watch({})
    assert index.blocks == 0


def test_salt_and_adapter_tell_equal_tokens_apart() -> None:
    keys = [key(TEXT), key(TEXT, salt="a"), key(TEXT, salt="b"), key(TEXT, lora="tuned")]
    index = Index()
    index.watch({each: token_bytes(TEXT) for each in keys})
    index.apply([stored(TEXT, salt="a"), stored(TEXT, lora="tuned")])
    assert [index.residency(each).tokens for each in keys] == [0, 6, 0, 6]
    index.apply([stored(TEXT)])
    assert [index.residency(each).tokens for each in keys] == [6, 6, 0, 6]
    assert "secret" not in repr(key(TEXT, salt="secret"))


@pytest.mark.parametrize(
    "event",
    [
        stored((9, *TEXT[1:])),
        stored(TEXT, salt="other"),
        stored(TEXT, 2),
        Stored((b"1",), None, token_bytes(TEXT[:2]), 3),
        Stored((b"1", b"2"), None, token_bytes(TEXT[:2]), 2),
        Stored((b"1",), None, b"", 0),
        Stored((b"1",), None, token_bytes(TEXT[:2]), 2, salt=None),
        Stored((b"1",), None, token_bytes(TEXT[:2]), 2, lora=None),
        stored(TEXT, kind="sliding_window"),
        stored(TEXT, group=16),
        stored(TEXT, medium="CPU"),
        removed(TEXT),
    ],
)
def test_blocks_that_continue_no_known_prefix_are_not_kept(event: Event) -> None:
    index = watching(TEXT)
    index.apply([event])
    assert (index.blocks, index.residency(key(TEXT))) == (0, Residency())


def test_copies_outside_the_gpu_are_known_by_hash_and_outlive_the_gpu() -> None:
    index = watching(TEXT)
    copy = Stored((name(TEXT[:2]),), None, b"", 0, "CPU")
    index.apply([stored(TEXT), copy, stored(TEXT, 2, medium="CPU"), removed(TEXT[:2])])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 0, copied=6)
    index.apply([removed(TEXT, "CPU")])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 0, copied=4)
    index.apply([Cleared()])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST)


def test_all_groups_must_have_a_block_and_their_sizes_may_differ() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT, group=0), stored(TEXT, size=4, group=1)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)
    index.apply([removed(TEXT[:4], group=1)])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 0)
    index.apply([stored(TEXT, size=4, group=1)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)


def test_a_longer_block_takes_the_place_of_its_own_beginning() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT[:1], size=1), stored(TEXT)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)
    assert index.blocks == 3
    index.apply([stored(TEXT[:1], size=1), removed(TEXT[:1])])
    assert index.residency(key(TEXT)).tokens == 6


def test_another_hash_at_the_same_place_replaces_the_old_one() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT)])
    index.apply([Stored((1, 2, 3), None, token_bytes(TEXT), B)])
    assert index.blocks == 3
    index.apply([removed(TEXT)])
    assert index.residency(key(TEXT)).tokens == 6


def test_what_happens_within_a_batch_counts_as_if_it_came_apart() -> None:
    index = watching(TEXT)
    index.apply([stored(TEXT), removed(TEXT), stored(TEXT, 4), removed(TEXT)])
    assert index.residency(key(TEXT)) == Residency(Standing.LOST, 4)
    index.take_changed()
    index.apply([stored(TEXT, 4), removed(TEXT)])
    assert index.take_changed() == {key(TEXT): Residency(Standing.LOST, 4)}
    index.apply([stored(TEXT, 4), Cleared(), stored(TEXT)])
    assert index.residency(key(TEXT)) == Residency(Standing.RESIDENT, 6)


@pytest.mark.parametrize("common", range(7))
def test_a_later_head_knows_just_the_blocks_that_it_shares(common: int) -> None:
    other = (*TEXT[:common], *(9 for _ in TEXT[common:]), 9)
    index = watching(TEXT)
    index.apply([stored(TEXT)])
    index.watch({key(TEXT): token_bytes(TEXT), key(other): token_bytes(other)})
    tokens = common - common % B
    whole = tokens == len(TEXT)
    standing = Standing.RESIDENT if whole else Standing.UNKNOWN
    assert index.residency(key(other)) == Residency(standing, len(other) if whole else tokens)


@dataclass
class Cache:
    """An engine's cache, block by block, that tells what it does.

    Like vLLM it frees the blocks of a request from the last to the first and evicts the least
    recently freed, so the last copy of a block outlives all blocks that continue it.
    """

    copies: Counter[tuple[int, ...]] = field(default_factory=Counter)
    told: list[Event] = field(default_factory=list)

    def leading(self, tokens: Sequence[int]) -> int:
        end = 0
        while end < len(tokens) and self.copies[tuple(tokens[: end + B])]:
            end += B
        return end

    def compute(self, tokens: Sequence[int], times: int) -> None:
        """Requests of the same text that start at the same moment each compute what is missing."""
        start = self.leading(tokens)
        for _ in range(times if start < len(tokens) else 0):
            self.told.append(stored(tokens, start))
            for end in range(start + B, len(tokens) + 1, B):
                self.copies[tuple(tokens[:end])] += 1

    def report(self, tokens: Sequence[int]) -> None:
        found = self.leading(tokens)
        if found:
            self.told.append(stored(tokens[:found]))
        self.compute(tokens, 1)

    def evict(self, number: int) -> None:
        cached = [block for block in sorted(self.copies.elements()) if self._may_go(block)]
        if cached:
            gone = cached[number % len(cached)]
            self.copies[gone] -= 1
            self.told.append(removed(gone))

    def _may_go(self, block: tuple[int, ...]) -> bool:
        further = (other for other in self.copies if other[:-B] == block)
        return self.copies[block] > 1 or not any(self.copies[other] for other in further)

    def clear(self) -> None:
        self.copies.clear()
        self.told.append(Cleared())


HEADS = [(1, 1, 1, 1), (1, 1, 2, 2, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2, 2, 2)]
_prompts = st.lists(st.sampled_from([(1, 1), (2, 2)]), min_size=1, max_size=4).map(
    lambda pairs: tuple(token for pair in pairs for token in pair)
)
_steps = st.one_of(
    st.tuples(st.just("compute"), _prompts, st.integers(1, 2)),
    st.tuples(st.just("report"), st.sampled_from(HEADS)),
    st.tuples(st.just("evict"), st.integers(0, 100)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("miss")),
    st.tuples(st.just("watch"), st.sets(st.sampled_from(HEADS))),
    st.tuples(st.just("garbage"), st.integers(0, 5), st.sampled_from(HEADS)),
)


AGAIN_AFTER_A_GAP: list[tuple[object, ...]] = [
    ("compute", (1, 1, 1, 1), 1),
    ("evict", 0),
    ("compute", (2, 2), 1),
    ("miss",),
    ("compute", (1, 1, 1, 1), 1),
    ("evict", 1),
]


WHOLE_BY_AN_OLDER_COPY: list[tuple[object, ...]] = [
    ("clear",),
    ("compute", (1, 1), 2),
    ("evict", 0),
    ("compute", (1, 1, 1, 1), 1),
]


@example(AGAIN_AFTER_A_GAP)
@example(WHOLE_BY_AN_OLDER_COPY)
@given(st.lists(_steps, max_size=40))
def test_what_the_index_claims_is_true_and_it_stays_small(steps: list[tuple[object, ...]]) -> None:
    index, cache = watching(*HEADS), Cache()
    watched: set[tuple[int, ...]] = set(HEADS)
    exact = True
    for step in steps:
        match step:
            case ("compute", tuple() as prompt, int() as times):
                cache.compute(prompt, times)
            case ("report", tuple() as head):
                if head not in watched or index.residency(key(head)).standing is Standing.RESIDENT:
                    continue
                index.expect_report([key(head)])
                cache.report(head)
                exact = False
            case ("evict", int() as number):
                cache.evict(number)
            case ("clear",):
                cache.clear()
            case ("miss",):
                exact = False
                cache.told.clear()
                index.forget()
            case ("watch", set() as heads):
                exact = exact and heads == watched
                watched = heads
                index.watch({key(head): token_bytes(head) for head in heads})
            case ("garbage", int() as value, tuple() as head):
                strange: BlockHash = value
                index.apply([Stored((strange,), b"nobody", token_bytes(head[:B]), B)])
        index.apply(cache.told)
        cache.told.clear()
        exact = exact and max(cache.copies.values(), default=0) <= 1
        for head in watched:
            claimed, true = index.residency(key(head)), cache.leading(head)
            assert claimed.tokens <= true
            assert (claimed.standing is Standing.RESIDENT) == (claimed.tokens == len(head))
            if claimed.standing is Standing.LOST:
                assert true < len(head)
            if exact:  # all was watched from the beginning, and no block had a second copy
                assert claimed.tokens == true
        assert index.blocks <= len({head[:end] for head in watched for end in range(B, 7, B)})
