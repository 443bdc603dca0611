"""Requests as clients send them, and what the engine says of its cache for each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from promptprefix.payload import Payload

DECISION_HEADER = "x-promptprefix-decision"
VOCABULARY = range(300, 8000)
"""Token ids that are ordinary text in the demo's model."""


@dataclass(frozen=True)
class Answer:
    """What one request cost.

    ``ttft_s`` is the time to the first streamed event; token counts are the engine's own
    (``usage``).
    """

    ttft_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    decision: str

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the engine had to compute."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True)
class Prefix:
    """A declared prefix as a client sends it; ``tag`` in front makes a distinct one."""

    model: str
    payload: Payload
    tag: str = ""

    def body(self, user: str) -> dict[str, Any]:
        """Return a streamed chat completion request with ``user`` as the user turn."""
        return {
            "model": self.model,
            "messages": [
                {"role": "system", "content": self.tag + self.payload.system},
                {"role": "user", "content": user},
            ],
            **({"tools": self.payload.tools} if self.payload.tools else {}),
            "max_tokens": 2,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def chat(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Answer:
    """Send a streamed chat completion and measure it; raise on an HTTP error."""
    return await _streamed(client, f"{url}/v1/chat/completions", body)


async def noise(client: httpx.AsyncClient, url: str, model: str, seed: int, tokens: int) -> Answer:
    """Send other people's traffic: ``tokens`` random tokens that nobody else sends."""
    chooser = random.Random(seed)  # noqa: S311 - reproducible load, not a secret
    body = {
        "model": model,
        "prompt": chooser.choices(VOCABULARY, k=tokens),
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return await _streamed(client, f"{url}/v1/completions", body)


async def noise_on_each(
    client: httpx.AsyncClient, urls: Sequence[str], model: str, seed: int, tokens: int
) -> None:
    """Send ``tokens`` of noise straight to every engine, in prompts of 1,024 tokens."""

    async def one(offset: int, url: str) -> None:
        for index in range(-(-tokens // 1024)):
            await noise(client, url, model, seed + 10_000 * offset + index, 1024)

    await asyncio.gather(*(one(offset, url) for offset, url in enumerate(urls, 1)))


async def _streamed(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Answer:
    begin = time.monotonic()
    first: float | None = None
    usage: dict[str, Any] = {}
    async with client.stream("POST", url, json=body) as response:
        if response.is_error:
            await response.aread()
            raise httpx.HTTPStatusError(
                f"{response.status_code} from {url}: {response.text[:300]}",
                request=response.request,
                response=response,
            )
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            first = first or time.monotonic()
            if line != "data: [DONE]":
                usage = json.loads(line[6:]).get("usage") or usage
    end = time.monotonic()
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        ttft_s=(first or end) - begin,
        total_s=end - begin,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        decision=response.headers.get(DECISION_HEADER, ""),
    )
