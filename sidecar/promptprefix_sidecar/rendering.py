"""Renderings of a declared text: what the engine is asked to tokenize, and what it makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from promptprefix.canonical import JsonValue
from promptprefix.payload import Payload, PayloadError
from promptprefix.reasons import Reason
from promptprefix.tokens import PROBE_USER_TURNS
from promptprefix_sidecar.engine_api import EngineApi, EngineRefusedError
from promptprefix_sidecar.head import (
    EDGE_USER_TURNS,
    Head,
    HeadError,
    clean_head,
    near_block_edge,
)

CONCURRENT_PROBES = 4
MIN_PROBES = 2
_TEMPLATE_REFUSED = (400, 422)


def probe_body(model: str, payload: Payload, user_turn: str) -> Mapping[str, JsonValue]:
    """Return the body of ``/tokenize`` for a request with the declared text and ``user_turn``.

    Raises `PayloadError`. An absent system message and an empty one render differently, and so do
    absent tools and an empty list; requests of clients leave both out.
    """
    messages: list[JsonValue] = []
    if payload.system:
        messages.append({"role": "system", "content": payload.system})
    messages.append({"role": "user", "content": user_turn})
    body: dict[str, JsonValue] = {
        "model": model,
        "messages": messages,
        "add_generation_prompt": True,
    }
    if payload.tools:
        body["tools"] = payload.tools
    if payload.options:
        body["chat_template_kwargs"] = payload.options
    return body


def check_numbers(payload: Payload) -> None:
    """Raise `PayloadError` for what was parsed but can't be sent, such as 1e999."""
    for field, value, reason in (
        ("toolDefinitions", payload.tools, Reason.INVALID_TOOLS),
        ("chatTemplateOptions", payload.options, Reason.INVALID_CONTENT),
    ):
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise PayloadError(field, "a number is too large for JSON", reason) from error


class Renderer:
    """Finds the token-clean head of declared texts by asking the engine."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine

    async def head(self, model: str, payload: Payload, block_size: int) -> Head:
        """Return the head; raise `HeadError`, `PayloadError` or `EngineError`."""
        check_numbers(payload)
        probes = await self._probes(model, payload, PROBE_USER_TURNS)
        if len(probes) < MIN_PROBES:
            raise HeadError(
                Reason.WARM_FAILED,
                "the engine refuses to render the prefix: check that its chat template takes a "
                "system message, these toolDefinitions and chatTemplateOptions",
            )
        if near_block_edge(probes, block_size):
            probes += await self._probes(model, payload, EDGE_USER_TURNS)
        return clean_head(probes, block_size)

    async def _probes(
        self, model: str, payload: Payload, user_turns: Sequence[str]
    ) -> list[tuple[int, ...]]:
        slots = asyncio.Semaphore(CONCURRENT_PROBES)

        async def probe(user_turn: str) -> tuple[int, ...] | None:
            async with slots:
                return await self._probe(probe_body(model, payload, user_turn))

        # All run to their end, so that none is left behind when one fails.
        results = await asyncio.gather(*map(probe, user_turns), return_exceptions=True)
        found: list[tuple[int, ...]] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                found.append(result)
        return found

    async def _probe(self, body: Mapping[str, JsonValue]) -> tuple[int, ...] | None:
        """Return the tokens, or None where the template refuses the turn.

        No request with such a user turn exists then, so the probe says nothing about the head.
        """
        try:
            return await self._engine.tokenize_chat(body)
        except EngineRefusedError as error:
            if error.status in _TEMPLATE_REFUSED:
                return None
            raise
