"""A client of the engine under test: plain requests, and signed commands for the plugin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

from e2e.engine.server import BLOCK_SIZE, SERVED_MODEL, RunningEngine
from promptprefix_vllm.commands import encode

TIMEOUT_SECONDS = 180.0

Json = dict[str, Any]


class EngineClient:
    """Signs like a sidecar: one counter that only rises, from the clock in milliseconds."""

    def __init__(self, engine: RunningEngine) -> None:
        self.url = engine.url
        self._http = httpx.Client(base_url=engine.url, timeout=TIMEOUT_SECONDS)
        self._key = engine.key
        self._counter = time.time_ns() // 1_000_000
        self.epoch = ""

    def close(self) -> None:
        self._http.close()

    def post(self, path: str, body: Json | None = None) -> Json:
        answer = self._http.post(path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else {}

    def metrics(self) -> dict[str, float]:
        """The engine's samples, by name with labels."""
        text = self._http.get("/metrics").raise_for_status().text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def complete(self, prompt: Sequence[int], max_tokens: int = 1, **more: Any) -> Json:
        body = {"model": SERVED_MODEL, "prompt": list(prompt), "max_tokens": max_tokens, **more}
        return self.post("/v1/completions", body)

    def cached_tokens(self, prompt: Sequence[int], **more: Any) -> int:
        """How many tokens of this request's prompt the engine found cached, in its own words."""
        # Before 0.25, vLLM leaves the details out where nothing was cached.
        details = self.complete(prompt, **more)["usage"]["prompt_tokens_details"] or {}
        return int(details.get("cached_tokens") or 0)

    def sign(self, op: str, pin_id: str, tokens: int, prompt: Sequence[int], **change: Any) -> str:
        self._counter += 1
        fields: dict[str, str | int] = {
            "v": 1,
            "op": op,
            "id": pin_id,
            "epoch": self.epoch,
            "counter": self._counter,
            "expiry": int(time.time()) + 120,
            "lease": 600 if op in ("pin", "renew") else 0,
            "priority": 0,
            "tokens": tokens,
        }
        return encode({**fields, **change}, prompt, self._key)

    def deliver(self, command: str, prompt: Sequence[int], **more: Any) -> Json:
        """Sends a signed command as it is; returns the plugin's answer."""
        done = self.complete(prompt, vllm_xargs={"promptprefix": command}, **more)
        answer: Json = done["kv_transfer_params"]["promptprefix"]
        return answer

    def command(
        self,
        op: str,
        pin_id: str = "",
        prompt: Sequence[int] = (1,),
        request: Json | None = None,
        **change: Any,
    ) -> Json:
        """``request``: fields of the completion request beside the command's own."""
        computes = op in ("pin", "warm")
        tokens = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE if computes else 0
        command = self.sign(op, pin_id, tokens, prompt, **change)
        return self.deliver(command, prompt, **(request or {}))

    def learn_epoch(self) -> str:
        self.epoch = ""
        self.epoch = str(self.command("report")["epoch"])
        return self.epoch
