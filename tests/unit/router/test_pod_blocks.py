"""What pods hold of a prompt: block sizes, adapters, salts, and how far a feed can be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.block_stream import BlockKeys, Hello, chain, root_name
from promptprefix_router.precise.block_index import EXPECTED_S, BlockIndex
from promptprefix_router.precise.pod_blocks import FeedState, Held, PodBlocks
from promptprefix_router.precise.prompt_tokens import MOST_BLOCKS, PromptTokens

KEYS = BlockKeys.of(bytes(range(32)))
HELLO = Hello("e1", 16, 4, ("m", "alias"))
TOKENS = list(range(16 * 12 + 1))
PROMPT = PromptTokens.of("m", TOKENS)
A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def names(
    blocks: int, *, adapter: str = "", salt: str = "", block_size: int = 16, every: int = 4
) -> list[bytes]:
    """Return what a feed tells of the first blocks of the prompt."""
    tokens = TOKENS[: blocks * block_size]
    return chain(KEYS, root_name(KEYS, adapter, salt), tokens, block_size)[every - 1 :: every]


class Stand:
    """Pod blocks with a clock, and what they told."""

    def __init__(self, capacity: int = 1000) -> None:
        self.now = 0.0
        self.emptied: list[str] = []
        self.blocks = PodBlocks(BlockIndex(capacity), lambda: self.now)
        self.blocks.emptied = self.emptied.append
        self.blocks.use(KEYS, frozenset({A, B}))
        self.blocks.seat({A: 0, B: 1})

    def whole(self, pod: str, told: list[bytes], hello: Hello = HELLO) -> None:
        """Have a feed that told all."""
        self.blocks.begin(pod, hello)
        self.blocks.add(pod, told)
        self.blocks.finish(pod)

    def held(self, prompt: PromptTokens = PROMPT) -> Held:
        """Return what both pods hold."""
        return self.blocks.held(prompt, 3)


@pytest.fixture
def stand() -> Stand:
    """Return a stand without feeds."""
    return Stand()


def test_tokens_are_counted_in_whole_steps(stand: Stand) -> None:
    stand.whole(A, names(11))
    stand.whole(B, names(4))
    assert stand.held() == Held([(128, 1), (64, 2)], 3)


def test_the_last_token_is_never_reused(stand: Stand) -> None:
    stand.whole(A, names(12))
    exact = PromptTokens.of("m", TOKENS[: 16 * 8])
    assert stand.held(exact) == Held([(64, 1)], 1)
    assert stand.held(PromptTokens.of("m", TOKENS[: 16 * 8 + 1])) == Held([(128, 1)], 1)
    assert stand.held(PromptTokens.of("m", [])) == Held([], 1)


def test_pods_of_different_block_sizes_are_compared_in_tokens(stand: Stand) -> None:
    stand.whole(A, names(8))
    stand.whole(B, names(3, block_size=64, every=1), replace(HELLO, block_size=64, every=1))
    assert stand.held() == Held([(192, 2), (128, 1)], 3)


@pytest.mark.parametrize("model", ["m", "alias"])
def test_all_names_of_the_base_model_are_one(stand: Stand, model: str) -> None:
    stand.whole(A, names(4))
    assert stand.held(replace(PROMPT, model=model)).groups == [(64, 1)]


def test_an_adapter_has_blocks_of_its_own(stand: Stand) -> None:
    stand.whole(A, names(4, adapter="lora"))
    stand.whole(B, names(8))
    assert stand.held(PromptTokens.of("lora", TOKENS)).groups == [(64, 1)]
    assert stand.held().groups == [(128, 2)]


def test_a_salt_has_blocks_of_its_own(stand: Stand) -> None:
    stand.whole(A, names(4, salt="s1"))
    stand.whole(B, names(8, salt="s2"))
    assert stand.held(PromptTokens.of("m", TOKENS, "s1")).groups == [(64, 1)]
    assert stand.held(PromptTokens.of("m", TOKENS, "s2")).groups == [(128, 2)]
    assert stand.held().groups == []


@pytest.mark.parametrize("hello", [HELLO, replace(HELLO, complete=False)])
def test_a_feed_is_believed_whole_only_once_all_was_told(stand: Stand, hello: Hello) -> None:
    stand.blocks.begin(A, hello)
    stand.blocks.add(A, names(4))
    assert stand.held() == Held([(64, 1)], 0)
    assert stand.blocks.states == {FeedState.WHOLE: 0, FeedState.PARTIAL: 1, FeedState.LOST: 1}
    stand.blocks.finish(A)
    assert stand.held().sure == int(hello.complete)


def test_a_feed_without_room_is_not_whole_until_it_is_emptied() -> None:
    stand = Stand(capacity=1)
    stand.whole(A, names(12))
    assert stand.held() == Held([(64, 1)], 0)
    stand.blocks.clear(A)
    assert stand.held() == Held([], 1)


def test_a_lost_feed_leaves_nothing(stand: Stand) -> None:
    stand.whole(A, names(12))
    stand.blocks.sent(PROMPT, 0, A)
    stand.blocks.lose(A)
    assert stand.held() == Held([], 0)
    assert not stand.blocks.ready
    assert not stand.blocks.tells([A, B])
    stand.blocks.lose(A)


def test_an_engine_whose_block_size_is_unknown_tells_nothing_yet(stand: Stand) -> None:
    stand.whole(A, [], replace(HELLO, block_size=0))
    assert stand.held() == Held([], 0)
    assert not stand.blocks.ready


def test_a_feed_that_begins_anew_forgets(stand: Stand) -> None:
    stand.whole(A, names(12))
    stand.blocks.begin(A, HELLO)
    assert stand.held() == Held([], 0)
    assert stand.emptied == []


def test_another_epoch_of_the_engine_has_nothing_of_what_was_sent(stand: Stand) -> None:
    stand.whole(A, names(12))
    stand.whole(A, [], replace(HELLO, epoch="e2"))
    assert stand.held() == Held([], 1)
    assert stand.emptied == [A]


def test_a_reset_takes_what_was_just_sent_too(stand: Stand) -> None:
    stand.whole(A, [])
    stand.blocks.sent(PROMPT, 0, A)
    assert stand.held().groups == [(192, 1)]
    stand.blocks.clear(A)
    assert stand.held() == Held([], 1)
    assert stand.emptied == [A]


def test_what_was_sent_is_believed_for_a_while(stand: Stand) -> None:
    stand.whole(A, [])
    stand.blocks.sent(PROMPT, 0, A)
    stand.blocks.sent(PROMPT, 1, B)
    assert stand.held().groups == [(192, 1)]
    stand.now = EXPECTED_S
    assert stand.held().groups == []


def test_a_pod_that_left_the_table_is_on_no_seat(stand: Stand) -> None:
    stand.whole(A, names(12))
    stand.blocks.seat({B: 0})
    assert stand.held() == Held([], 0)


def test_without_keys_nothing_is_known(stand: Stand) -> None:
    stand.whole(A, names(12))
    stand.blocks.use(None, frozenset())
    assert stand.held().groups == []
    assert not stand.blocks.ready
    assert not stand.blocks.tells([A])


def test_a_prompt_without_end_is_named_in_part() -> None:
    """Whatever a client sends, and whatever block size a pod tells, no one waits for long."""
    prompt = PromptTokens("m", bytes(4 * 10 * MOST_BLOCKS))
    found = prompt.names(KEYS, 2, 4, adapter=False)
    assert len(found) == MOST_BLOCKS // 4
    longer = PromptTokens("m", bytes(4 * 20 * MOST_BLOCKS))
    assert longer.names(KEYS, 2, 4, adapter=False) == found
