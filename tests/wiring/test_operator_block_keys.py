"""The key of the feeds of block names: made where it is missing, and the same for every leader."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest

from promptprefix.block_stream import KEY_BYTES, namespace_key
from promptprefix.wire import EngineState, RouteTable, SidecarState, SyncRequest, SyncResponse
from promptprefix_operator.service import Operator

from .fake_kubernetes import ApiServer
from .operator_harness import MODEL, Client, api_server, running, send

ENGINE = EngineState(
    healthy=True, address="203.0.113.9", port=8000, models=(MODEL,), block_size=32, blocks_port=8091
)
SECRET = ("v1/secrets", "system", "promptprefix-operator-tls")
QUESTION = SyncRequest(state=SidecarState(engine=ENGINE)).model_dump_json()


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with api_server() as server:
        yield server


async def told(api: ApiServer, operator: Operator) -> tuple[SyncResponse, str]:
    """Return the answer to the pod, and to the router."""
    status, text = await Client(api, operator, "ml/vllm/vllm-0").ask(
        "POST", "/v1/sidecar/sync", QUESTION
    )
    assert status == 200, text
    status, routes = await Client(api, operator, "system/router").ask("GET", "/v1/routes")
    assert status == 200, routes
    return SyncResponse.model_validate_json(text), routes


def stored(api: ApiServer) -> dict[str, str]:
    data: dict[str, str] = api.objects[SECRET]["data"]
    return data


async def test_a_restart_keeps_the_key_and_an_upgrade_makes_one(
    api: ApiServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(api) as operator:
        first, routes = await told(api, operator)
    seed = base64.b64decode(stored(api)["blocks-seed"])
    assert first.blocks_key == namespace_key(seed, "ml").hex()
    assert first.pod_uid == "uid-vllm-0"
    table = RouteTable.model_validate_json(routes)
    assert [(each.namespace, each.key) for each in table.blocks_keys] == [("ml", first.blocks_key)]
    assert [each.blocks_port for each in table.endpoints] == [8091]

    async with running(api) as operator:
        again, _ = await told(api, operator)
    assert again.revision.term > first.revision.term
    assert again.blocks_key == first.blocks_key

    # As a release that knows of no seed leaves the Secret.
    path = "/api/v1/namespaces/system/secrets/promptprefix-operator-tls"
    await send(api, "PATCH", path, {"data": {**stored(api), "blocks-seed": ""}})
    authority = stored(api)["ca.key"]
    async with running(api) as operator:
        upgraded, _ = await told(api, operator)
    assert len(bytes.fromhex(upgraded.blocks_key)) == KEY_BYTES
    assert upgraded.blocks_key != first.blocks_key
    assert stored(api)["ca.key"] == authority

    logged = caplog.text + "".join(capsys.readouterr())
    assert not any(
        secret in logged for secret in (seed.hex(), first.blocks_key, upgraded.blocks_key)
    )
