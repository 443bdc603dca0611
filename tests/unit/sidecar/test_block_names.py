"""Which names are held, by an engine's events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.block_stream import KEY_BYTES, BlockKeys
from promptprefix_sidecar.block_feed import names as names_module
from promptprefix_sidecar.block_feed.names import BlockNames
from promptprefix_sidecar.block_feed.waiting import MAX_NAMELESS, MAX_WAITING, Nameless
from promptprefix_sidecar.kv_events.events import Cleared, Removed, Stored

from .block_engine import KEYS, SIZE, BlockEngine, hashes_of, names_of, stored

PROMPT = list(range(12))
OTHERS = BlockKeys.of(bytes(KEY_BYTES))


def named(*events: Stored | Removed | Cleared, keyed: bool = True) -> BlockNames:
    names = BlockNames()
    if keyed:
        names.keyed(KEYS)
    names.begin(complete=True)
    names.apply(events)
    return names


def held(names: BlockNames, step: int = 1) -> set[bytes]:
    return set(names.held(step))


def test_each_whole_block_has_the_name_that_a_router_computes() -> None:
    names = named(stored(PROMPT))
    assert held(names) == set(names_of(PROMPT))
    assert held(names, 4) == {names_of(PROMPT)[3]}
    assert (names.block_size, names.blocks, names.complete) == (SIZE, 6, True)


def test_a_prompt_that_comes_in_parts_is_one_chain() -> None:
    assert held(named(stored(PROMPT[:6]), stored(PROMPT, 3))) == set(names_of(PROMPT))


@pytest.mark.parametrize("scope", [("tuned", ""), ("", "salt"), ("tuned", "salt")])
def test_adapters_and_salts_are_told_apart(scope: tuple[str, str]) -> None:
    names = named(stored(PROMPT, scope=scope))
    assert held(names) == set(names_of(PROMPT, scope))
    assert not held(names) & set(names_of(PROMPT))


@pytest.mark.parametrize(
    "event",
    [
        replace(stored(PROMPT), salt=None),
        replace(stored(PROMPT), lora=None),
        replace(stored(PROMPT), medium="CPU"),
        replace(stored(PROMPT), kind="sliding_window"),
        replace(stored(PROMPT), group=16),
        replace(stored(PROMPT), tokens=b""),
        replace(stored(PROMPT), block_size=0),
    ],
)
def test_what_is_no_plain_text_in_full_attention_on_the_gpu_has_no_name(event: Stored) -> None:
    assert not held(named(event))


def test_what_comes_behind_an_image_has_no_name() -> None:
    image = replace(stored(PROMPT[:4]), salt=None)
    names = named(image, stored(PROMPT[:8], 2), stored(PROMPT, 4))
    assert (held(names), names.waiting, names.complete) == (set(), 0, True)
    names.apply([Removed(tuple(hashes_of(PROMPT))), stored(PROMPT[:8], 2)])
    assert (names.waiting, names.complete) == (2, False)
    # Keys of a later block are no salt: an embedding's digest, say.
    names = named(stored(PROMPT[:4]), replace(stored(PROMPT, 2), salt="digest"))
    assert held(names) == set(names_of(PROMPT[:4]))


def test_those_without_a_name_are_bounded() -> None:
    nameless = Nameless()
    for number in range(MAX_NAMELESS + 1):
        nameless.add(0, (number,))
    assert not nameless.has(0, 0)
    assert nameless.has(0, 1)
    nameless.clear()
    assert not nameless.has(0, 1)


def test_a_copy_that_goes_leaves_the_other() -> None:
    first = Removed((hashes_of(PROMPT)[0],))
    names = named(stored(PROMPT), stored(PROMPT), first)
    assert held(names) == set(names_of(PROMPT))
    names.apply([first])
    assert held(names) == set(names_of(PROMPT)[1:])
    names.apply([first, Removed((b"unknown",))])
    assert held(names) == set(names_of(PROMPT)[1:])


def test_blocks_that_a_request_found_are_no_copies() -> None:
    names = BlockNames(reported=lambda event: event.parent is None)
    names.keyed(KEYS)
    names.apply([stored(PROMPT), stored(PROMPT), Removed(tuple(hashes_of(PROMPT)))])
    assert not held(names)


def test_a_copy_outside_the_gpu_that_goes_says_nothing() -> None:
    names = named(stored(PROMPT), Removed(tuple(hashes_of(PROMPT)), medium="CPU"))
    assert held(names) == set(names_of(PROMPT))


def test_equal_names_of_an_adapter_that_was_loaded_anew_are_held_by_either() -> None:
    again = tuple(b"again" + each for each in hashes_of(PROMPT))
    names = named(stored(PROMPT), replace(stored(PROMPT), hashes=again))
    names.apply([Removed(tuple(hashes_of(PROMPT)))])
    assert held(names) == set(names_of(PROMPT))
    names.apply([Removed(again)])
    assert not held(names)
    assert names.blocks == 0


def test_a_block_is_held_where_every_group_that_keeps_whole_prefixes_has_it() -> None:
    full = "full_attention"
    names = named(stored(PROMPT, kind=full))
    assert held(names) == set(names_of(PROMPT))
    names.apply([stored(PROMPT[:6], group=1, kind=full)])
    assert held(names) == set(names_of(PROMPT[:6]))
    names.apply([stored(PROMPT, group=2, kind="sliding_window")])
    assert held(names) == set(names_of(PROMPT[:6]))
    names.apply([Removed((hashes_of(PROMPT)[1],), group=1)])
    assert held(names) == {names_of(PROMPT)[0], names_of(PROMPT)[2]}


def test_parts_of_blocks_are_passed_over_and_their_size_is_not_taken_for_it() -> None:
    part = Stored((b"part",), None, stored(PROMPT[:2]).tokens[:4], 1)
    names = named(part)
    assert names.block_size == 1
    names.apply([stored(PROMPT), part])
    assert (names.block_size, held(names)) == (SIZE, set(names_of(PROMPT)))


def test_a_child_without_a_parent_is_named_when_that_is_known() -> None:
    names = named(stored(PROMPT, 4), stored(PROMPT[:8], 3))
    assert (held(names), names.waiting, names.complete) == (set(), 3, False)
    names.apply([Removed((hashes_of(PROMPT)[5],)), stored(PROMPT[:6])])
    assert held(names) == set(names_of(PROMPT)[:5])
    assert names.waiting == 0


def test_those_that_wait_are_bounded() -> None:
    names = named()
    for number in range(MAX_WAITING + 10):
        names.apply([replace(stored(PROMPT[:4], 1), hashes=(b"%d" % number,), parent=b"none")])
    assert names.waiting == MAX_WAITING
    names.apply([Removed((b"%d" % (MAX_WAITING + 9),))])
    assert names.waiting == MAX_WAITING - 1


def test_blocks_are_bounded_and_that_some_are_missing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names_module, "MAX_BLOCKS", 4)
    names = named(stored(PROMPT))
    assert held(names) == set(names_of(PROMPT)[:4])
    assert (names.blocks, names.passed_over, names.complete) == (4, 2, False)
    names.apply([Removed(tuple(hashes_of(PROMPT)))])
    assert names.blocks == 0


def test_after_a_clear_all_is_known() -> None:
    names = named(stored(PROMPT, 2))
    assert not names.complete
    names.apply([Cleared()])
    assert (held(names), names.complete, names.waiting) == (set(), True, 0)
    names.apply([stored(PROMPT)])
    assert held(names) == set(names_of(PROMPT))


def test_what_came_before_the_key_is_named_when_it_is_there() -> None:
    names = named(stored(PROMPT), Removed((hashes_of(PROMPT)[5],)), keyed=False)
    assert (held(names), names.complete) == (set(), True)
    names.keyed(KEYS)
    assert held(names) == set(names_of(PROMPT)[:5])
    assert names.complete


def test_what_comes_before_the_key_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MAX_EARLY", 10)
    names = named(stored(PROMPT), stored([9, *PROMPT]), stored([8, *PROMPT]), keyed=False)
    names.keyed(KEYS)
    assert not names.complete
    assert held(names) == set(names_of([8, *PROMPT]))
    names = named(stored(PROMPT, 2), stored([9, *PROMPT]), Cleared(), keyed=False)
    names.apply([stored(PROMPT)])
    names.keyed(KEYS)
    assert (held(names), names.complete) == (set(names_of(PROMPT)), True)


def test_with_another_key_nothing_is_known() -> None:
    names = named(stored(PROMPT))
    names.keyed(KEYS)
    assert held(names) == set(names_of(PROMPT))
    names.keyed(OTHERS)
    assert (held(names), names.complete) == (set(), False)
    names.apply([stored(PROMPT)])
    assert held(names) == set(names_of(PROMPT, keys=OTHERS))


def test_a_new_connection_knows_nothing() -> None:
    names = named(stored(PROMPT))
    names.begin(complete=False)
    assert (held(names), names.blocks, names.complete) == (set(), 0, False)


def test_an_engine_that_gives_up_parents_first_is_followed() -> None:
    engine, names = BlockEngine(), named()
    for number in (0, 0, 3, 1):
        names.apply(engine.compute(PROMPT))
        names.apply(engine.evict(number))
        assert held(names) == engine.held
