"""Two tenants with the same text and different cache salts share no block."""

from __future__ import annotations

import json

import pytest

from e2e.life.stand import Life
from e2e.life.texts import SALTS, text
from e2e.operator_stand import apply

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="package")]

TEXT = text("customs papers", 30)


async def test_salted_prefixes_are_apart(stand: Life) -> None:
    pod = stand.pods[0]
    for name, salt in SALTS.items():
        apply(
            stand.server,
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": name, "namespace": "ml"},
                    "stringData": {"salt": salt},
                }
            ),
        )
    salt_a, salt_b = ({"name": name, "key": "salt"} for name in SALTS)
    stand.apply("salted-a", TEXT, tenant="tenant-a", cacheSaltRef=salt_a)
    await stand.until("salted-a", "Warm", ("True", "Warm"))
    tokens, blocks = (stand.status("salted-a")[key] for key in ("tokens", "blocks"))
    assert await pod.cached_tokens(TEXT, "Hi", cache_salt=SALTS["tenant-a"]) == tokens
    assert await pod.cached_tokens(TEXT, "Hi", cache_salt=SALTS["tenant-b"]) == 0
    assert await pod.metric("pinned_blocks") == blocks

    stand.apply("salted-b", TEXT, tenant="tenant-b", cacheSaltRef=salt_b)
    await stand.until("salted-b", "Warm", ("True", "Warm"))
    assert await pod.metric("pinned_blocks") == 2 * blocks, "not one block is shared"
    await pod.press()
    for salt in SALTS.values():
        assert await pod.cached_tokens(TEXT, "Hi", cache_salt=salt) == tokens
    assert await pod.cached_tokens(TEXT, "Hi") == 0

    seen = json.dumps(stand.lines) + pod.log()
    seen += stand.server.kubectl("get", "pp,events", "-n", "ml", "-o", "json")
    assert not any(salt in seen for salt in SALTS.values())
