"""Reading of event batches: both shapes, several versions, and everything that is no batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.tokens import token_bytes
from promptprefix_sidecar.kv_events.decoding import BatchError, decode_batch
from promptprefix_sidecar.kv_events.events import Batch, Cleared, Event, Removed, Stored

HASHES = [b"\x01" * 32, b"\x02" * 32]
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": HASHES,
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def decoded(*events: object, **batch: object) -> Batch:
    return decode_batch(msgspec.msgpack.encode([7.5, list(events), *batch.values()]))


def only(event: object) -> Event:
    batch = decoded(event)
    assert (len(batch.events), batch.unknown, batch.broken) == (1, 0, 0)
    return batch.events[0]


def stored(event: object) -> Stored:
    found = only(event)
    assert isinstance(found, Stored)
    return found


def test_maps_as_current_versions_send_them() -> None:
    new = {**STORED, "group_idx": 1, "kv_cache_spec_kind": "full_attention", "locality": "LOCAL"}
    tokens = token_bytes([1, 2, 3, 4])
    assert only(STORED) == Stored(tuple(HASHES), None, tokens, 2)
    assert only(new) == Stored(tuple(HASHES), None, tokens, 2, group=1, kind="full_attention")
    assert only({"type": "BlockRemoved", "block_hashes": HASHES, "medium": "cpu"}) == Removed(
        tuple(HASHES), "CPU"
    )
    assert only({"type": "AllBlocksCleared"}) == Cleared()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (["BlockStored", [5], 4, [1, 2], 2, None], Stored((5,), 4, token_bytes([1, 2]), 2)),
        (
            ["BlockStored", [5], None, [1, 2], 2, 3, "GPU", "tuned", [["tuned"]], 1, "mamba", 9],
            Stored((5,), None, token_bytes([1, 2]), 2, lora="tuned", group=1, kind="mamba"),
        ),
        (["BlockStored", [5], None, [], 0], Stored((5,), None, b"", 0)),
        (["BlockRemoved", [5]], Removed((5,))),
        (["BlockRemoved", ["5"], None, 1, "LOCAL"], Removed(("5",), "GPU", 1)),
        (["AllBlocksCleared"], Cleared()),
    ],
)
def test_arrays_as_older_versions_send_them(raw: list[object], expected: Event) -> None:
    assert only(raw) == expected


@pytest.mark.parametrize(
    ("lora", "keys", "salt"),
    [
        (None, None, ""),
        (None, [None, None], ""),
        (None, [["tenant-a"], None], "tenant-a"),
        (None, [[["cache_salt", "tenant-a"]], None], "tenant-a"),
        ("tuned", [["tuned"], ["tuned"]], ""),
        ("tuned", [["tuned", "tenant-a"], ["tuned"]], "tenant-a"),
        ("tuned", [["tuned", "tuned"], ["tuned"]], "tuned"),
        ("tuned", [[["lora", "tuned", "/path"]], [["lora", "tuned", "/path"]]], ""),
        (None, [[["image", 3]], None], None),
        (None, [None, ["something"]], None),
        (None, [["tenant-a", "digest"], None], None),
        (None, "keys", None),
    ],
)
def test_the_salt_is_found_among_the_keys_of_the_first_block(
    lora: str | None, keys: object, salt: str | None
) -> None:
    found = stored({**STORED, "lora_name": lora, "extra_keys": keys})
    assert (found.lora, found.salt) == (lora or "", salt)
    assert "tenant-a" not in repr(found)


def test_an_adapter_without_a_name_is_nobody() -> None:
    assert stored({**STORED, "lora_id": 1, "lora_name": None}).lora is None


def test_what_is_unknown_or_unreadable_is_counted_and_the_rest_is_used() -> None:
    batch = decoded(
        {"type": "BlockMoved", "block_hashes": HASHES},
        ["Novelty", 1],
        [],
        "text",
        {**STORED, "block_hashes": "none"},
        {**STORED, "token_ids": [1, -1]},
        {**STORED, "block_size": "two"},
        ["BlockRemoved", [True]],
        ["AllBlocksCleared", "more"],
        rank=2,
    )
    assert batch == Batch(7.5, (Cleared(),), rank=2, unknown=4, broken=4)


def test_a_batch_may_be_a_map() -> None:
    payload = msgspec.msgpack.encode({"ts": 1, "events": [["AllBlocksCleared"]], "more": 1})
    assert decode_batch(payload) == Batch(1.0, (Cleared(),))


@pytest.mark.parametrize("value", [None, 3, [], [1.0], [None, []], {"ts": 1.0}, [1.0, {}, 0]])
def test_other_values_are_no_batch(value: object) -> None:
    with pytest.raises(BatchError):
        decode_batch(msgspec.msgpack.encode(value))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except BatchError:
        return


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary() | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text() | st.sampled_from(sorted(STORED)), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(_VALUES, max_size=5), _VALUES)
def test_no_values_raise_anything_else(events: list[object], rank: object) -> None:
    try:
        batch = decode_batch(msgspec.msgpack.encode([1.0, events, rank]))
    except BatchError:
        return
    assert len(batch.events) + batch.unknown + batch.broken == len(events)
