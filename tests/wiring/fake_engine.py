"""A fake of vLLM's HTTP API with a small prefix cache, and the real plugin's desk behind it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

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


def block_hashes(ids: Sequence[int]) -> tuple[bytes, ...]:
    hashes: list[bytes] = []
    parent = b""
    for start in range(0, len(ids) - len(ids) % BLOCK_SIZE, BLOCK_SIZE):
        text = json.dumps(list(ids[start : start + BLOCK_SIZE])).encode()
        parent = hashlib.sha256(parent + text).digest()
        hashes.append(parent)
    return tuple(hashes)


@dataclass
class FakeEngine:
    """``merges`` are pairs of characters that the tokenizer takes for one token.

    ``gate`` holds up all completions, ``queue`` those without a command.
    """

    key: bytes = b"k" * 32
    plugin: bool = True
    blocks: int = 64
    budget: int = 32
    template: str = "<{system}|{tools}|U:{user}>A:"
    merges: frozenset[str] = frozenset()
    usage_details: bool = True
    prefix_caching: bool = True
    up: bool = True
    paused: bool = False
    refusal: str = ""
    waiting: int = 0
    models: tuple[str, ...] = (MODEL,)
    boot: int = 1
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    hits: int = 0
    queries: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.queue = asyncio.Event()
        self.queue.set()
        self._start()

    def _start(self) -> None:
        self.pool = FakePool(self.blocks)
        self.table = PinTable(self.pool, BLOCK_SIZE, self.budget)
        self.desk = PinDesk(self.table, self.key, epoch=f"epoch-{self.boot}")

    def restart(self, *, plugin: bool | None = None) -> None:
        self.boot += 1
        self.hits = self.queries = 0
        self.plugin = self.plugin if plugin is None else plugin
        self._start()

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

    def prefill(self, ids: Sequence[int]) -> int:
        """Compute a prompt and leave it in the cache; return how much of it was cached."""
        hashes = block_hashes(ids)
        held: list[FakeBlock] = []
        for digest in hashes[: (len(ids) - 1) // BLOCK_SIZE]:
            if digest not in self.pool.cached:
                break
            held.append(self.pool.cached[digest])
        self.pool.touch(held)
        cached = len(held) * BLOCK_SIZE
        for digest in hashes[len(held) :]:
            block = self.pool.allocate()
            block.block_hash = digest
            self.pool.cached.setdefault(digest, block)
            held.append(block)
        self.pool.free_blocks(reversed(held))
        self.queries += len(ids)
        self.hits += cached
        return cached

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if not self.up:
            raise httpx.ConnectError("refused", request=request)
        body = json.loads(request.content) if request.content else {}
        self.requests.append((request.url.path, body))
        match request.url.path:
            case "/health":
                return httpx.Response(200)
            case "/version":
                return httpx.Response(200, json={"version": "0.0-fake"})
            case "/v1/models":
                data = [{"id": name, "max_model_len": 100_000} for name in self.models]
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
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}\n'
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}\n'
        )

    def _tokenize(self, body: dict[str, Any]) -> httpx.Response:
        *system, user = body["messages"]
        text = self.template.format(
            system=system[0]["content"] if system else "",
            tools=json.dumps(body.get("tools", "")),
            user=user["content"],
        )
        return httpx.Response(200, json={"tokens": self.tokenize(text)})

    async def _complete(self, body: dict[str, Any]) -> httpx.Response:
        if body["model"] not in self.models:
            return httpx.Response(404)
        ids: list[int] = body["prompt"]
        command = (body.get("vllm_xargs") or {}).get("promptprefix")
        request_id = str(len(self.requests))
        hashes = block_hashes(ids)
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "prompt_tokens_details": None}
        desk = self.desk
        if command is not None and self.plugin:
            desk.receive(request_id, command, ids, hashes)
        if command is None:
            await self.queue.wait()
        await self.gate.wait()
        if self.paused:  # vLLM ends its requests then, with HTTP 200 and without their answers
            desk.finish(request_id, hashes, False)
            aborted = [{"finish_reason": "abort"}]
            return httpx.Response(200, json={"choices": aborted, "usage": usage})
        cached = self.prefill(ids)
        answer = desk.finish(request_id, hashes, True)
        if self.usage_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        reply: dict[str, Any] = {"choices": [], "usage": usage}
        if answer is not None and self.refusal:
            answer = {"v": 1, "ok": False, "reason": self.refusal, "message": "not now"}
        if answer is not None:
            reply["kv_transfer_params"] = {"promptprefix": answer}
        return httpx.Response(200, json=reply)
