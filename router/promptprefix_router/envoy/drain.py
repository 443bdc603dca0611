"""Lets the Envoy beside the picker end without a lost request: the pod's work before it stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import httpx

FAILED = 1


def drain(
    admin_url: str,
    seconds: float,
    transport: httpx.BaseTransport | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Let Envoy drain for ``seconds``; return the exit status.

    From now on its ``/health`` answers 503 and every response ends its connection. Requests go on
    being served, and open streams on running, for as long as this takes.
    """
    try:
        with httpx.Client(transport=transport, timeout=2.0, trust_env=False) as admin:
            admin.post(f"{admin_url}/healthcheck/fail").raise_for_status()
    except httpx.HTTPError as error:
        sys.stderr.write(f"Envoy's admin listener at {admin_url}: {error}\n")
        return FAILED
    sleep(seconds)
    return 0
