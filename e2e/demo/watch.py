"""Follows one object through ``kubectl get --watch``, without asking the API server again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from e2e.install.readings import condition

RESOLUTION_S = 0.02
"""How exactly the moment of a change is known."""


class Watch:
    """The newest state of one object (``latest``), and a way to wait for one that fits."""

    def __init__(self, kubectl: Sequence[str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*kubectl, "get", *arguments, "--watch", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.latest: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()

    async def wait(
        self, what: str, fits: Callable[[dict[str, Any]], bool], seconds: float
    ) -> float:
        """Wait until the object fits; return that moment (monotonic seconds)."""
        deadline = time.monotonic() + seconds
        while not (self.latest and fits(self.latest)):
            if time.monotonic() > deadline or self._process.poll() is not None:
                status = json.dumps(self.latest.get("status", {}), indent=1)
                raise TimeoutError(f"{what} did not happen in {seconds:.0f} s: {status}")
            await asyncio.sleep(RESOLUTION_S)
        return time.monotonic()

    def _read(self) -> None:
        decoder = json.JSONDecoder()
        text = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text += line
            # kubectl prints indented documents; only a lone brace can end one.
            if line.rstrip() != "}":
                continue
            self.latest, _ = decoder.raw_decode(text)
            text = ""


def warm_on(count: int) -> Callable[[dict[str, Any]], bool]:
    """Return a test: the newest generation is Warm, on ``count`` pods."""

    def fits(resource: dict[str, Any]) -> bool:
        warm = condition(resource, "Warm")
        return warm.get("status") == "True" and resource["status"].get("warmPods") == count

    return fits
