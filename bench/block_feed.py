"""What a sidecar's feed of block names costs: processor time for 1,000 blocks, and memory.

Steps of 8,192 prefilled tokens in blocks of 16 that evict as many, as vLLM publishes them. Run as
``python -m bench.block_feed``.
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import time
from collections import deque
from pathlib import Path

import msgspec

from promptprefix.block_stream import KEY_BYTES, BlockKeys, chain, root_name
from promptprefix_sidecar.block_feed.feed import Feed
from promptprefix_sidecar.block_feed.names import MAX_BLOCKS, BlockNames
from promptprefix_sidecar.kv_events.decoding import decode_batch
from promptprefix_sidecar.kv_events.events import Batch, Stored

SIZE = 16
TOKENS = 8_192
BLOCKS = TOKENS // SIZE
STEPS = 60
KEPT_STEPS = 20
"""Steps whose blocks the engine's cache has room for."""
KEYS = BlockKeys.of(bytes(KEY_BYTES))


def payloads() -> list[bytes]:
    """Return what an engine publishes, step by step."""
    dice = random.Random(1)  # noqa: S311 - a workload
    kept: deque[list[bytes]] = deque()
    found = []
    for step in range(STEPS):
        gone = kept.popleft() if len(kept) == KEPT_STEPS else []
        hashes = [hashlib.sha256(b"%d-%d" % (step, place)).digest() for place in range(BLOCKS)]
        kept.append(hashes)
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": [dice.randrange(128_000) for _ in range(TOKENS)],
            "block_size": SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        removed = [
            {"type": "BlockRemoved", "block_hashes": [each], "medium": "GPU", "group_idx": 0}
            for each in gone
        ]
        found.append(msgspec.msgpack.encode([float(step), [*removed, event], 0]))
    return found


def feed_ms(batches: list[Batch], readers: int) -> float:
    """Return the processor time for 1,000 blocks that come and 1,000 that go, with readers."""
    feed = Feed(BlockNames())
    feed.keyed(KEYS)
    feed.begin(complete=True)
    joined = [feed.join(4) for _ in range(readers)]
    spent = []
    for batch in batches:
        began = time.process_time()
        feed.take(batch)
        feed.flush()
        for reader in joined:
            reader.drain()
        spent.append(time.process_time() - began)
    return statistics.median(spent[KEPT_STEPS:]) * 1_000 * 1_000 / BLOCKS


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def full_names() -> BlockNames:
    """Return as many names as there can be."""
    names = BlockNames()
    names.keyed(KEYS)
    number = 0
    while names.blocks < MAX_BLOCKS:
        hashes = tuple(hashlib.sha256(b"%d" % (number + place)).digest() for place in range(BLOCKS))
        names.apply([Stored(hashes, None, os.urandom(TOKENS * 4), SIZE)])
        names.take_changes()
        number += BLOCKS
    return names


def main() -> None:
    """Print the costs."""
    published = payloads()
    began = time.process_time()
    batches = [decode_batch(each) for each in published]
    decoding = (time.process_time() - began) * 1_000 * 1_000 / BLOCKS / STEPS
    print(f"decoding: {decoding:.1f} ms for 1,000 blocks that come and 1,000 that go")
    for readers in (0, 1, 16):
        print(f"naming, {readers} readers: {feed_ms(batches, readers):.1f} ms for as many")
    del batches, published
    before = resident_mib()
    names = full_names()
    print(f"memory: {resident_mib() - before:.0f} MiB for {names.blocks} blocks")
    feed = Feed(names)
    began = time.process_time()
    feed.join(4)
    print(f"a reader's first answer: {(time.process_time() - began) * 1_000:.0f} ms")
    began = time.process_time()
    chain(KEYS, root_name(KEYS), range(TOKENS), SIZE)
    print(f"names of {TOKENS} tokens: {(time.process_time() - began) * 1_000:.2f} ms")


if __name__ == "__main__":
    main()
