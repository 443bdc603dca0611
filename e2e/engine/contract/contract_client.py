"""The client of the suite: raw answers, and waiting for what an engine does by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from e2e.engine.client import TIMEOUT_SECONDS, EngineClient, Json
from e2e.engine.server import RunningEngine

WAIT_SECONDS = 20.0


class ContractClient(EngineClient):
    """Besides commands: any request, whatever comes back."""

    def __init__(self, engine: RunningEngine) -> None:
        super().__init__(engine)
        self._raw = httpx.Client(base_url=engine.url, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        super().close()
        self._raw.close()

    def raw(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self._raw.request(method, path, **request)

    def get(self, path: str) -> Json:
        found: Json = self._raw.get(path).raise_for_status().json()
        return found

    def post_text(self, path: str, body: Json) -> str:
        return self._raw.post(path, json=body).raise_for_status().text

    def eventually(self, condition: Callable[[], Any], told: Callable[[], str] = str) -> None:
        """Wait until it holds; ``told`` says what was found instead."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, told()
            time.sleep(0.05)
