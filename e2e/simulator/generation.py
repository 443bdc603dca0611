"""Completions and chats: checks a body as vLLM does, runs its sequences, words the answer."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from e2e.simulator import answers
from e2e.simulator.bodies import ChatBody, CompletionBody, Generation, RefusedError
from e2e.simulator.scheduler import StepResult
from e2e.simulator.sim_request import LoraRequest, SamplingParams, SimRequest
from e2e.simulator.simulated_engine import SimulatedEngine
from e2e.simulator.tokenizer import VOCABULARY, render, tokenize

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class _Job:
    """What a body asks for: ``n`` sequences for each of the prompts."""

    body: Generation
    name: str
    created: int
    prompts: tuple[SimRequest, ...]
    sequences: tuple[SimRequest, ...]
    is_chat: bool


class Generator:
    """Of every answer the first item is the content type, the rest its body."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def check_model(self, name: str) -> None:
        """Refuse a model that isn't served; no name means the first."""
        if name and name not in self._engine.core.models:
            served = self._engine.options.model
            message = f"The model `{name}` does not exist. Valid aliases: {served}."
            raise RefusedError(404, message, "model")

    async def complete(self, body: CompletionBody) -> AsyncGenerator[bytes, None]:
        """Answer /v1/completions."""
        self.check_model(body.model)
        prompts = [
            tokenize(each) if isinstance(each, str) else list(each) for each in body.prompts()
        ]
        if not prompts or not all(prompts):
            raise RefusedError(400, "You must pass at least one prompt")
        job = self._job("cmpl", body, prompts, body.max_tokens, is_chat=False)
        async with aclosing(self._answer(job)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def chat(self, body: ChatBody) -> AsyncGenerator[bytes, None]:
        """Answer /v1/chat/completions."""
        self.check_model(body.model)
        ids = render(body.messages, body.shown_tools, body.chat_template_kwargs or {})
        longest = body.max_completion_tokens or body.max_tokens
        job = self._job("chatcmpl", body, [ids], longest, is_chat=True)
        async with aclosing(self._answer(job)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _job(
        self,
        prefix: str,
        body: Generation,
        prompts: Sequence[list[int]],
        max_tokens: int | None,
        *,
        is_chat: bool,
    ) -> _Job:
        if body.cache_salt == "":
            message = "Parameter 'cache_salt' must be a non-empty string if provided."
            raise RefusedError(400, message, "cache_salt")
        limits = [self._max_tokens(ids, max_tokens) for ids in prompts]
        name = f"{prefix}-{secrets.token_hex(8)}"
        adapter = LoraRequest.of(self._engine.core.adapters.get(body.model))
        now = self._engine.clock.wall()
        sequences = tuple(
            SimRequest(
                request_id=f"{name}-{index}-{choice}",
                prompt_token_ids=ids,
                sampling_params=SamplingParams(
                    max_tokens=limit,
                    stop=body.stops,
                    stop_token_ids=frozenset(body.stop_token_ids),
                    extra_args=body.vllm_xargs,
                ),
                block_size=self._engine.options.block_size,
                cache_salt=body.cache_salt,
                lora_request=adapter,
                arrived=now,
            )
            for index, (ids, limit) in enumerate(zip(prompts, limits, strict=True))
            for choice in range(body.n)
        )
        return _Job(body, name, int(now), sequences[:: body.n], sequences, is_chat)

    def _max_tokens(self, ids: Sequence[int], wanted: int | None) -> int:
        longest = self._engine.options.max_model_len
        if len(ids) > longest:
            message = (
                f"This model's maximum context length is {longest} tokens. However, your prompt "
                f"contains {len(ids)} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={len(ids)})"
            )
            raise RefusedError(400, message, "input_tokens")
        if max(ids) >= VOCABULARY or min(ids) < 0:
            raise RefusedError(400, f"Token id {max(ids)} is out of vocabulary", "prompt")
        room = longest - len(ids)
        limit = room if wanted is None else min(wanted, room)
        if limit < 1:
            message = f"max_tokens must be at least 1, got {limit}."
            raise RefusedError(
                400, f"{message} (parameter=max_tokens, value={limit})", "max_tokens"
            )
        return limit

    async def _answer(self, job: _Job) -> AsyncGenerator[bytes, None]:
        if job.body.stream:
            yield EVENT_STREAM.encode()
            async with aclosing(self._streamed(job)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        parameters = await self._all(job.sequences)
        yield b"application/json"
        word = answers.chat if job.is_chat else answers.completion
        model = job.body.model or self._engine.options.model
        use = answers.usage(job.prompts, job.sequences)
        body = word(
            job.name, model, job.created, job.sequences, use, parameters,
            token_ids=job.body.return_token_ids,
        )  # fmt: skip
        yield json.dumps(body, separators=(",", ":")).encode()

    async def _all(self, sequences: Sequence[SimRequest]) -> dict[str, Any] | None:
        """Run the sequences side by side; return what came with the end of the last prompt's."""
        tasks = [asyncio.create_task(self._one(each)) for each in sequences]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next((each for each in found if each is not None), None)

    async def _one(self, request: SimRequest) -> dict[str, Any] | None:
        parameters = None
        async with aclosing(self._engine.run(request)) as results:
            async for result in results:
                parameters = result.kv_transfer_params
        return parameters

    async def _streamed(self, job: _Job) -> AsyncGenerator[bytes, None]:
        model = job.body.model or self._engine.options.model
        wants_usage = job.body.stream_options is not None and job.body.stream_options.include_usage
        queue: asyncio.Queue[tuple[int, StepResult | None]] = asyncio.Queue()
        feeding = [
            asyncio.create_task(self._feed(index, request, queue))
            for index, request in enumerate(job.sequences)
        ]
        try:
            for index in range(len(feeding) if job.is_chat else 0):
                yield answers.role_chunk(job.name, model, job.created, index)
            open_sequences = len(feeding)
            while open_sequences:
                index, result = await queue.get()
                if result is None:
                    open_sequences -= 1
                    continue
                ended = result.request if result.last else None
                last = ended is not None and open_sequences == 1 and not wants_usage
                yield answers.text_chunk(
                    job.name, model, job.created, index, result.text, ended,
                    is_chat=job.is_chat, last=last,
                )  # fmt: skip
            await asyncio.gather(*feeding)
        finally:
            for task in feeding:
                task.cancel()
            await asyncio.gather(*feeding, return_exceptions=True)
        if wants_usage:
            use = answers.usage(job.prompts, job.sequences)
            yield answers.usage_chunk(job.name, model, job.created, use, is_chat=job.is_chat)
        yield answers.DONE

    async def _feed(
        self, index: int, request: SimRequest, queue: asyncio.Queue[tuple[int, StepResult | None]]
    ) -> None:
        try:
            async with aclosing(self._engine.run(request)) as results:
                async for result in results:
                    queue.put_nowait((index, result))
        finally:
            queue.put_nowait((index, None))
