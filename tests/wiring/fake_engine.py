"""A fake of vLLM's HTTP API with a small prefix cache, and the real plugin's desk behind it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from promptprefix_vllm.adapters import Adapter
from promptprefix_vllm.cache import PrefixCache
from promptprefix_vllm.connectors import Transfer
from promptprefix_vllm.desk import PinDesk
from promptprefix_vllm.pins import PinTable

BLOCK_SIZE = 16
MODEL = "demo"


@dataclass
class FakeBlock:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: bytes | None = None


class FakePool:
    """The few methods of vLLM's block pool that the plugin calls, with LRU eviction."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks + 1
        self.free: OrderedDict[int, FakeBlock] = OrderedDict(
            (number, FakeBlock(number)) for number in range(1, blocks + 1)
        )
        self.cached: dict[bytes, FakeBlock] = {}

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1
            self.free.pop(block.block_id, None)

    def free_blocks(self, ordered_blocks: Iterable[FakeBlock]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free[block.block_id] = block

    def get_cached_block(self, block_hash: bytes, _groups: list[int]) -> list[FakeBlock] | None:
        block = self.cached.get(block_hash)
        return None if block is None else [block]

    def evict_blocks(self, block_ids: set[int]) -> None:
        for block in [*self.cached.values()]:
            if block.block_id in block_ids:
                self.forget(block)

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def allocate(self) -> FakeBlock:
        _, block = self.free.popitem(last=False)
        self.forget(block)
        block.ref_cnt = 1
        return block

    def forget(self, block: FakeBlock) -> None:
        if block.block_hash is not None:
            self.cached.pop(block.block_hash, None)
            block.block_hash = None


def block_hashes(ids: Sequence[int], extra: str = "") -> tuple[bytes, ...]:
    hashes: list[bytes] = []
    parent = extra.encode()
    for start in range(0, len(ids) - len(ids) % BLOCK_SIZE, BLOCK_SIZE):
        text = json.dumps(list(ids[start : start + BLOCK_SIZE])).encode()
        parent = hashlib.sha256(parent + text).digest()
        hashes.append(parent)
    return tuple(hashes)


@dataclass
class FakeEngine:
    """``merges`` are pairs of characters that the tokenizer takes for one token.

    ``gate`` holds up all completions, ``queue`` plain and warm ones. ``older``: a plugin that
    neither evicts nor warms. ``adapters`` maps names to the place and number of what is loaded.
    ``tier``: blocks that go are kept elsewhere. Like vLLM it sends nothing while it sleeps.
    """

    key: bytes = b"k" * 32
    plugin: bool = True
    older: bool = False
    tier: str = ""
    tier_forgets: bool = False
    blocks: int = 64
    budget: int = 32
    template: str = "<{system}|{tools}|U:{user}>A:"
    merges: frozenset[str] = frozenset()
    usage_details: bool = True
    prefix_caching: bool = True
    up: bool = True
    paused: bool = False
    refusal: str = ""
    running: int = 0
    waiting: int = 0
    models: tuple[str, ...] = (MODEL,)
    adapters: dict[str, tuple[str, int]] = field(default_factory=dict)
    boot: int = 1
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    hits: int = 0
    queries: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.queue = asyncio.Event()
        self.queue.set()
        self.awake = asyncio.Event()
        self.awake.set()
        self.asked = asyncio.Event()
        self._start()

    def _start(self) -> None:
        self.pool = FakePool(self.blocks)
        self.table = PinTable(PrefixCache(self.pool, BLOCK_SIZE), BLOCK_SIZE, self.budget)
        transfer = Transfer(offload_tier=self.tier)
        self.desk = PinDesk(self.table, self.key, epoch=f"epoch-{self.boot}", transfer=transfer)
        self.stored: set[bytes] = set()
        self.by_source = {"device": 0, "host": 0}
        self.computed: list[int] = []

    def restart(self, *, plugin: bool | None = None) -> None:
        self.boot += 1
        self.hits = self.queries = 0
        self.plugin = self.plugin if plugin is None else plugin
        self._start()

    def reset_cache(self) -> None:
        self.table.release_all(0.0)
        for block in [*self.pool.cached.values()]:
            self.pool.forget(block)

    def sleep(self) -> None:
        self.awake.clear()
        self.reset_cache()

    def ask(self, text: str, salt: str = "") -> int:
        """Answer a user's request that begins with ``text``; return how much was cached."""
        ids = [*self.tokenize(text), 1]
        cached = self.prefill(ids, salt)
        hashes = block_hashes(ids, salt)
        self.table.record_request(hashes, cached, time.monotonic())
        return cached

    def adapter_named(self, name: str) -> Adapter | None:
        if name not in self.adapters:
            return None
        path, number = self.adapters[name]
        return Adapter(name=name, number=number, path=path)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url="http://engine", transport=httpx.MockTransport(self._handle)
        )

    def sent(self, path: str) -> list[dict[str, Any]]:
        return [body for sent_to, body in self.requests if sent_to == path]

    def commands(self) -> list[str]:
        """Operations of the commands that arrived, in order."""
        xargs = (body.get("vllm_xargs") for body in self.sent("/v1/completions"))
        return [json.loads(item["promptprefix"])["op"] for item in xargs if item]

    def pins(self) -> set[str]:
        return {pin.id for pin in self.table.pins}

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = []
        position = 0
        while position < len(text):
            pair = text[position : position + 2]
            if pair in self.merges:
                ids.append(200_000 + sorted(self.merges).index(pair))
                position += 2
            else:
                ids.append(ord(text[position]))
                position += 1
        return ids

    def hashes_of(self, text: str, extra: str = "") -> tuple[bytes, ...]:
        return block_hashes(self.tokenize(text), extra)

    def prefill(self, ids: Sequence[int], extra: str = "") -> int:
        """Compute a prompt and leave it in the cache; return how much of it was cached."""
        hashes = block_hashes(ids, extra)
        held: list[FakeBlock] = []
        reusable = hashes[: (len(ids) - 1) // BLOCK_SIZE]
        for digest in reusable:
            if digest not in self.pool.cached:
                break
            held.append(self.pool.cached[digest])
        self.pool.touch(held)
        given = 0
        for digest in reusable[len(held) :]:
            if digest not in self.stored:
                break
            given += 1
        self.by_source["device"] += len(held) * BLOCK_SIZE
        self.by_source["host"] += given * BLOCK_SIZE
        cached = (len(held) + given) * BLOCK_SIZE
        if self.tier and not self.tier_forgets:
            self.stored.update(hashes)
        for digest in hashes[len(held) :]:
            block = self.pool.allocate()
            block.block_hash = digest
            self.pool.cached.setdefault(digest, block)
            held.append(block)
        self.pool.free_blocks(reversed(held))
        self.queries += len(ids)
        self.hits += cached
        self.computed.append(len(ids) - cached)
        return cached

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if not self.up:
            raise httpx.ConnectError("refused", request=request)
        body = json.loads(request.content) if request.content else {}
        self.requests.append((request.url.path, body))
        self.asked.set()
        match request.url.path:
            case "/health":
                return httpx.Response(200)
            case "/version":
                return httpx.Response(200, json={"version": "0.0-fake"})
            case "/v1/models":
                data = [
                    {"id": name, "root": f"/models/{name}", "max_model_len": 100_000}
                    for name in self.models
                ]
                data += [
                    {"id": name, "root": path, "parent": MODEL}
                    for name, (path, _) in self.adapters.items()
                ]
                return httpx.Response(200, json={"data": data})
            case "/metrics":
                return httpx.Response(200, text=self._exposition())
            case "/tokenize":
                return self._tokenize(body)
            case "/v1/completions":
                return await self._complete(body)
        return httpx.Response(404)

    def _exposition(self) -> str:
        return (
            f"process_start_time_seconds {1000 + self.boot}\n"
            f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{self.blocks}",'
            f'enable_prefix_caching="{self.prefix_caching}"}} 1\n'
            f'vllm:num_requests_running{{engine="0"}} {self.running}\n'
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}\n'
            f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} '
            f"{float(self.awake.is_set())}\n"
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}\n'
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}\n'
        ) + "".join(
            f'vllm:prompt_tokens_cached_by_source_total{{engine="0",source="{source}"}} {count}\n'
            for source, count in self.by_source.items()
        )

    def _readable(self, command: str) -> str:
        """What an older plugin makes of a command: one that it doesn't know is malformed."""
        known = not self.older or json.loads(command)["op"] in ("pin", "unpin", "renew", "report")
        return command if known else "{}"

    def _tokenize(self, body: dict[str, Any]) -> httpx.Response:
        *system, user = body["messages"]
        text = self.template.format(
            system=system[0]["content"] if system else "",
            tools=json.dumps(body.get("tools", "")),
            user=user["content"],
        )
        return httpx.Response(200, json={"tokens": self.tokenize(text)})

    async def _complete(self, body: dict[str, Any]) -> httpx.Response:
        if body["model"] not in (*self.models, *self.adapters):
            return httpx.Response(404)
        adapter = self.adapter_named(body["model"])
        self.desk.see_adapter(adapter)
        ids: list[int] = body["prompt"]
        command = (body.get("vllm_xargs") or {}).get("promptprefix")
        request_id = str(len(self.requests))
        extra = body.get("cache_salt", "") + ("" if adapter is None else adapter.path)
        hashes = block_hashes(ids, extra)
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "prompt_tokens_details": None}
        desk = self.desk
        if command is not None and self.plugin:
            desk.receive(request_id, self._readable(command), ids, hashes, adapter)
        if command is None or json.loads(command)["op"] == "warm":
            await self.queue.wait()
        await self.gate.wait()
        await self.awake.wait()
        if self.paused:  # vLLM ends its requests then, with HTTP 200 and without their answers
            desk.finish(request_id, hashes, False)
            aborted = [{"finish_reason": "abort"}]
            return httpx.Response(200, json={"choices": aborted, "usage": usage})
        cached = self.prefill(ids, extra)
        answer = desk.finish(request_id, hashes, True, adapter)
        if answer is not None and self.older:
            answer.pop("watched", None)
        if self.usage_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        reply: dict[str, Any] = {"choices": [], "usage": usage}
        if answer is not None and self.refusal:
            answer = {"v": 1, "ok": False, "reason": self.refusal, "message": "not now"}
        if answer is not None:
            reply["kv_transfer_params"] = {"promptprefix": answer}
        return httpx.Response(200, json=reply)
