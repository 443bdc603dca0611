"""KV events: what is stored, removed and cleared, in order, and again by replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from e2e.engine.contract.contract_client import ContractClient
from e2e.engine.contract.subject import ADAPTER, Subject
from e2e.engine.server import BLOCK_SIZE
from e2e.engine.token_prompts import tokens

pytestmark = pytest.mark.timeout(300)

WAIT_MS = 10_000
END = (-1).to_bytes(8, "big", signed=True)
Frames = tuple[bytes, int, list[Any]]


@contextlib.contextmanager
def socket(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    opened = context.socket(kind)
    opened.connect(endpoint)
    try:
        yield opened
    finally:
        opened.close(linger=0)
        context.destroy(linger=0)


def replay(subject: Subject, start: int = 0) -> list[Frames]:
    """Return the batches from ``start`` on."""
    found: list[Frames] = []
    with socket(zmq.DEALER, subject.replay) as dealer:
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            assert dealer.poll(WAIT_MS), "no answer to a replay"
            _, topic, number, payload = dealer.recv_multipart()
            if number == END:
                return found
            found.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


def since(subject: Subject, start: int) -> list[dict[str, Any]]:
    return [event for _, _, batch in replay(subject, start) for event in batch[1]]


@pytest.fixture
def start(client: ContractClient, subject: Subject) -> int:
    """Number of the first batch that comes next."""
    client.complete(tokens(90, BLOCK_SIZE + 1))
    client.eventually(lambda: replay(subject))
    return replay(subject)[-1][1] + 1


def test_a_prompt_stores_its_blocks_in_one_chain(
    client: ContractClient, subject: Subject, start: int
) -> None:
    prompt = tokens(91, 3 * BLOCK_SIZE + 1)
    client.complete(prompt)
    client.complete([*prompt[:-1], *tokens(92, 2 * BLOCK_SIZE)])
    client.eventually(lambda: len(since(subject, start)) == 2)
    first, second = since(subject, start)
    assert set(first) == {
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    }  # fmt: skip
    assert (first["type"], first["medium"], first["group_idx"]) == ("BlockStored", "GPU", 0)
    assert (first["block_size"], first["parent_block_hash"]) == (BLOCK_SIZE, None)
    assert first["token_ids"] == prompt[:-1]
    assert (len(first["block_hashes"]), first["extra_keys"]) == (3, [None] * 3)
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert len(second["block_hashes"]) == 2


def test_salts_and_adapters_are_told(client: ContractClient, subject: Subject, start: int) -> None:
    prompt = tokens(93, 2 * BLOCK_SIZE + 1)
    client.complete(prompt, cache_salt="t" * 16)
    client.complete(prompt, model=ADAPTER)
    client.eventually(lambda: len(since(subject, start)) == 2)
    salted, styled = since(subject, start)
    assert salted["extra_keys"] == [["t" * 16], None]
    assert styled["extra_keys"] == [[ADAPTER], [ADAPTER]]
    assert (styled["lora_name"], styled["lora_id"]) == (ADAPTER, 1)
    assert salted["block_hashes"] != styled["block_hashes"]


def test_pressure_removes_and_a_reset_clears(
    client: ContractClient, subject: Subject, start: int
) -> None:
    client.complete(tokens(94, 40 * BLOCK_SIZE + 1))
    client.complete(tokens(95, 90 * BLOCK_SIZE))
    client.post("/reset_prefix_cache")
    client.complete(tokens(96, BLOCK_SIZE + 1))
    client.eventually(lambda: since(subject, start)[-1]["type"] == "BlockStored")
    events = since(subject, start)
    stored = {each for event in events[:1] for each in event["block_hashes"]}
    removed = [event for event in events if event["type"] == "BlockRemoved"]
    assert set(removed[0]) == {"type", "block_hashes", "medium", "group_idx"}
    assert len(removed) == 4
    assert {each for event in removed for each in event["block_hashes"]} <= stored | known(
        subject, start
    )
    kinds = [event["type"] for event in events]
    assert kinds.count("AllBlocksCleared") == 1
    assert next(event for event in events if event["type"] == "AllBlocksCleared") == {
        "type": "AllBlocksCleared"
    }


def known(subject: Subject, start: int) -> set[int]:
    """Hashes that were stored before ``start``."""
    found: set[int] = set()
    for _, number, batch in replay(subject):
        if number < start:
            for event in batch[1]:
                found |= set(event.get("block_hashes", ()))
    return found


def test_live_batches_are_those_of_the_replay(
    client: ContractClient, subject: Subject, start: int
) -> None:
    with socket(zmq.SUB, subject.events) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv")
        seed = 970
        while not subscriber.poll(200):
            seed += 1
            client.complete(tokens(seed, BLOCK_SIZE + 1))
        topic, number, payload = subscriber.recv_multipart()
    wanted = int.from_bytes(number, "big")
    again = next(each for each in replay(subject, wanted) if each[1] == wanted)
    assert again == (topic, wanted, msgspec.msgpack.decode(payload))
    stamp, _, rank = again[2]
    assert (topic, rank) == (b"kv", 0)
    assert stamp > 1e9
