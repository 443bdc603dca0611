"""Near misses of real requests through picker and Envoy, and the program that reads them."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from e2e.router.samples import CHAT, DECISION, PAYLOAD
from e2e.router.stack import RouterStack
from e2e.router.test_heads import chat, known, publish
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

NAME = "promptprefix_router_near_misses_total"


async def test_a_near_miss_is_counted_and_told_without_its_text(stack: RouterStack) -> None:
    await publish(stack, known(PAYLOAD), texts=1)
    before = await stack.metric(NAME, cause="edited-text")
    undeclared = await stack.metric("promptprefix_router_undeclared_total", cause="other-text")
    body = chat(PAYLOAD.system.replace("ask", "try"))
    asked = 0

    async def seen() -> bool:
        nonlocal asked
        asked += 1
        answer = await stack.client.post(f"{stack.url}{CHAT}", json=body)
        assert answer.headers[DECISION].endswith("match=undeclared")
        return await stack.metric(NAME, cause="edited-text") > before

    await until(seen, "the picker has looked at one of the requests")
    now = await stack.metric("promptprefix_router_undeclared_total", cause="other-text")
    assert now == undeclared + asked

    url = f"http://127.0.0.1:{stack.metrics_port}"
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from promptprefix_cli.main import app; app()"),
        *("explain", "--from", url, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await program.communicate()
    assert program.returncode == 1
    latest = json.loads(out)[0]["nearMisses"][0]
    assert (latest["prefix"], latest["cause"]) == ("support-triage", "edited-text")
    assert (latest["field"], latest["offset"]) == (
        "systemInstructions",
        PAYLOAD.system.index("ask"),
    )
    raw = (await stack.client.get(f"{url}/near-misses")).text
    assert "guess" not in raw
    assert "guess" not in (await stack.client.get(f"{url}/metrics")).text
