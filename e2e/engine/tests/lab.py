"""vLLM's real scheduler and KV cache manager, stepped by hand in place of a model."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from promptprefix_vllm.commands import encode
from promptprefix_vllm.scheduler import scheduler_class

SIZE = 32
KEY = b"k" * 32
FAR_FUTURE = 2**40

Answer = dict[str, Any]


def configuration(blocks: int, *, asynchronous: bool, max_model_len: int) -> VllmConfig:
    model = ModelConfig(
        model=os.environ["ENGINE_MODEL"],
        dtype="float32",
        max_model_len=max_model_len,
        skip_tokenizer_init=True,
    )
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=SIZE, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=8192,
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
    )
    config.cache_config.num_gpu_blocks = blocks
    # The CPU platform switches it off in every configuration, so it is set afterwards.
    config.scheduler_config.async_scheduling = asynchronous
    return config


def attention(block_size: int = SIZE, **change: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, **change
    )


def new_scheduler(
    blocks: int = 41,
    *,
    asynchronous: bool = False,
    max_model_len: int = 1280,
    specs: Sequence[Any] = (),
    change: Any = None,
) -> Any:
    """40 usable blocks by default, so the default budget is 20."""
    init_none_hash(sha256)
    config = configuration(blocks, asynchronous=asynchronous, max_model_len=max_model_len)
    if change is not None:
        change(config)
    groups = [
        KVCacheGroupSpec([f"layer{number}"], spec)
        for number, spec in enumerate(specs or [attention()])
    ]
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=SIZE,
        hash_block_size=SIZE,
        log_stats=True,
    )


def tokens(seed: int, count: int) -> list[int]:
    """Prompts of different seeds share no block."""
    return [1 + (seed * 1009 + number * 31) % 8000 for number in range(count)]


@dataclass
class Lab:
    """One scheduler and what its requests were answered.

    in_flight: steps that were scheduled but not yet executed; an asynchronous engine has two.
    """

    scheduler: Any
    depth: int = 1
    counter: int = 0
    numbers: int = 0
    answers: dict[str, Answer | None] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    stats: Any = None
    in_flight: deque[Any] = field(default_factory=deque)

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def epoch(self) -> str:
        return str(self.scheduler._desk.epoch)

    @property
    def table(self) -> Any:
        return self.scheduler._desk.table

    def used_blocks(self) -> int:
        return int(self.pool.num_gpu_blocks - 1 - self.pool.get_num_free_blocks())

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 1,
        extra: dict[str, Any] | None = None,
        salt: str | None = None,
        lora: Any = None,
    ) -> str:
        self.numbers += 1
        name = f"r{self.numbers}"
        parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra)
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=parameters,
                pooling_params=None,
                cache_salt=salt,
                lora_request=lora,
                block_hasher=get_request_block_hasher(SIZE, sha256),
            )
        )
        return name

    def step(self) -> None:
        """As the engine does: schedules, and executes the oldest step once enough are in flight."""
        if self.scheduler.has_requests():
            self.in_flight.append(self.scheduler.schedule())
            if len(self.in_flight) < self.depth and self.scheduler.has_requests():
                return
        if self.in_flight:
            self._execute(self.in_flight.popleft())

    def _execute(self, output: Any) -> None:
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests.get(name)
            prefilling = request is not None and request.is_prefill_chunk
            sampled.append([] if prefilling else self.sample(name, output))
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self.transfers(),
        )
        for batch in self.scheduler.update_from_output(output, result).values():
            self.stats = batch.scheduler_stats or self.stats
            for item in batch.outputs:
                if item.finish_reason is not None:
                    self.finished.add(item.request_id)
                    self.answers[item.request_id] = item.kv_transfer_params

    def sample(self, name: str, output: Any) -> list[int]:
        """The tokens that a step gave a request that is past its prompt."""
        return [7]

    def transfers(self) -> Any:
        """What the workers tell of a KV connector's transfers with a step's results."""
        return None

    def check(self) -> None:
        """Every block is referenced by exactly those that use it: requests, pins, late frees."""
        uses: Counter[int] = Counter()
        for name in self.scheduler.requests:
            for group in self.scheduler.kv_cache_manager.get_blocks(name).blocks:
                uses.update(block.block_id for block in group if not block.is_null)
        for _, blocks in self.scheduler.deferred_frees:
            uses.update(block.block_id for block in blocks)
        uses.update({item.block.block_id for pin in self.table.pins for item in pin.held})
        references = {block.block_id: block.ref_cnt for block in self.pool.blocks[1:]}
        assert {number: count for number, count in references.items() if count} == dict(uses)
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        assert len(free) == len(set(free)) == self.pool.get_num_free_blocks()
        assert set(free) == {number for number, count in references.items() if not count}

    def run(self, limit: int = 400) -> None:
        """Until nothing is left to do; a hang is a failure."""
        for _ in range(limit):
            if not self.scheduler.has_requests() and not self.in_flight:
                return
            self.step()
        raise AssertionError("the engine makes no progress")

    def ask(self, prompt: Sequence[int], **options: Any) -> str:
        name = self.add(prompt, **options)
        self.run()
        assert name in self.finished
        return name

    def cached(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt a request would find cached."""
        probe = Request(
            request_id="probe",
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=get_request_block_hasher(SIZE, sha256),
        )
        return int(self.scheduler.kv_cache_manager.get_computed_blocks(probe)[1])

    def press(self, times: int = 3) -> None:
        """Other traffic, several times the size of the cache."""
        for number in range(times * 2):
            self.ask(tokens(9000 + self.numbers + number, 20 * SIZE))

    def wire(self, op: str, pin_id: str, count: int, prompt: Sequence[int], **change: Any) -> str:
        self.counter += 1
        fields: dict[str, Any] = {
            "v": 1,
            "op": op,
            "id": pin_id,
            "epoch": self.epoch,
            "counter": self.counter,
            "expiry": FAR_FUTURE,
            "lease": 600 if op in ("pin", "renew") else 0,
            "priority": 0,
            "tokens": count,
        }
        return encode({**fields, **change}, prompt, KEY)

    def send(self, op: str, pin_id: str = "", prompt: Sequence[int] = (1,), **change: Any) -> str:
        """Adds a command's request; pin takes the prompt's full blocks but for the last token."""
        count = (len(prompt) - 1) // SIZE * SIZE if op == "pin" else 0
        text = self.wire(op, pin_id, change.pop("count", count), prompt, **change)
        return self.add(prompt, extra={"promptprefix": text})

    def command(
        self, op: str, pin_id: str = "", prompt: Sequence[int] = (1,), **change: Any
    ) -> Any:
        name = self.send(op, pin_id, prompt, **change)
        self.run()
        return self.answer(name)

    def answer(self, name: str) -> Any:
        parameters = self.answers[name]
        assert parameters is not None
        return parameters["promptprefix"]

    def abort(self, name: str | None) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
