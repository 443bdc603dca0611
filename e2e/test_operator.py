"""The operator's process against a real API server: the life of prefixes, and who may ask what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.operator_stand import (
    SYSTEM,
    TEXT,
    Client,
    apply,
    conditions,
    control_plane,
    events,
    get,
    manifest,
    operator,
    pod_token,
    ready,
    sidecars,
    token,
    until,
)
from promptprefix.wire import AUDIENCE, EngineState, SidecarState, SyncRequest

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


async def test_life_of_a_prefix(server: Cluster, tmp_path: Path) -> None:
    async with (
        operator(server, tmp_path, VERSION_IDLE_SECONDS="3") as running,
        sidecars(server, running) as fakes,
    ):
        apply(server, manifest("triage"))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 1))
        found = get(server, "promptprefix", "triage")
        status = found["status"]
        assert (status["warm"], status["tokens"], status["blocks"]) == ("2/2", 320, 10)
        assert status["pinnedPods"] == 2
        assert {k: v["status"] for k, v in conditions(server, "triage").items()} == {
            "Ready": "True",
            "Active": "True",
            "Warm": "True",
            "Reconciling": "False",
            "Stalled": "False",
        }
        owners = {
            (each["manager"], each["operation"], each.get("subresource"))
            for each in found["metadata"]["managedFields"]
        }
        assert ("promptprefix-operator", "Apply", "status") in owners

        apply(server, manifest("triage", text=f"Second. {TEXT}"))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 2))
        assert all(len(each.held) == 2 for each in fakes), "some still send the first text"
        await until(lambda: all(len(each.held) == 1 for each in fakes))
        assert [each.fetched for each in fakes] == [[TEXT, f"Second. {TEXT}"]] * 2

        apply(server, manifest("triage", text=f"Second. {TEXT}", suspend=True))
        await until(lambda: ready(server, "triage") == ("True", "Suspended", 3))
        assert [each.held for each in fakes] == [{}, {}]
        apply(server, manifest("triage", text=f"Second. {TEXT}", suspend=False))
        await until(lambda: ready(server, "triage") == ("True", "Warm", 4))

        metadata = get(server, "promptprefix", "triage")["metadata"]
        assert metadata.keys().isdisjoint(("annotations", "finalizers"))
        server.kubectl("delete", "promptprefix", "triage", "-n", "ml", "--timeout=5s")
        await until(lambda: [each.held for each in fakes] == [{}, {}], 2)
        told = events(server, "triage")
        assert {"Warming", "Warm", "Suspended"} <= {each["reason"] for each in told}
        resident = running.resident_mb()
        print(f"operator: {resident:.0f} MB resident")
        assert resident <= 150
    assert "must not leak" not in json.dumps(told) + json.dumps(running.lines)
    assert running.errors == []


async def test_who_may_ask_what(server: Cluster, tmp_path: Path) -> None:
    question = SyncRequest(
        state=SidecarState(engine=EngineState(healthy=True, address="", port=1))
    ).model_dump_json()
    router = token(server, SYSTEM, "promptprefix-router", f"--audience={AUDIENCE}")
    async with operator(server, tmp_path) as running, sidecars(server, running):
        apply(server, manifest("guarded"))
        await until(lambda: ready(server, "guarded")[0] == "True")
        cases = [
            ("POST", "/v1/sidecar/sync", "nonsense", 401),
            ("POST", "/v1/sidecar/sync", pod_token(server, "vllm-0", "other"), 401),
            (
                "POST",
                "/v1/sidecar/sync",
                token(server, "ml", "vllm", f"--audience={AUDIENCE}"),
                403,
            ),
            ("POST", "/v1/sidecar/sync", router, 403),
            ("GET", "/v1/routes", pod_token(server, "vllm-0"), 403),
            ("GET", f"/v1/content/{'0' * 64}", pod_token(server, "vllm-0"), 403),
            ("GET", "/v1/routes?term=99999999999&number=1", router, 409),
            ("GET", "/v1/routes?term=x&number=1", router, 400),
        ]
        for method, path, bearer, expected in cases:
            client = Client(server, running, bearer)
            answer = await client.http.request(
                method, path, content=question if method == "POST" else None
            )
            assert (path, answer.status_code) == (path, expected), answer.text
            assert answer.json()["message"]
            await client.http.aclose()
        client = Client(server, running, router)
        table = await client.routes()
        await client.http.aclose()
        assert {(e.pod, e.address, e.port, e.ready) for e in table.endpoints} == {
            ("vllm-0", "10.0.0.1", 8000, True),
            ("vllm-1", "10.0.0.2", 8000, True),
        }
        [prefix] = table.prefixes
        assert (prefix.name, prefix.tenant) == ("guarded", "ml")
        assert all(e.warm == prefix.token_digests != () for e in table.endpoints)
        server.kubectl("delete", "promptprefix", "guarded", "-n", "ml", "--timeout=5s")


async def test_content_comes_late_and_a_restart_moves_nothing(
    server: Cluster, tmp_path: Path
) -> None:
    mapped = manifest("mapped", content={"configMapRef": {"name": "texts"}})
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        apply(server, mapped)
        await until(lambda: ready(server, "mapped")[:2] == ("False", "ContentNotFound"))
        assert conditions(server, "mapped")["Stalled"]["status"] == "False"
        server.kubectl(
            "create", "configmap", "texts", "-n", "ml", f"--from-literal=systemInstructions={TEXT}"
        )
        await until(lambda: ready(server, "mapped") == ("True", "Warm", 1))
        before = get(server, "promptprefix", "mapped")["status"]
        term = fakes[0].applied.term if fakes[0].applied else 0

    async with operator(server, tmp_path) as running:
        for each in fakes:
            each.client = Client(
                server, running, str(each.client.http.headers["authorization"])[7:]
            )
        tasks = [asyncio.create_task(each.run()) for each in fakes]
        await until(
            lambda: all(each.applied is not None and each.applied.term > term for each in fakes)
        )
        assert ready(server, "mapped") == ("True", "Warm", 1)
        assert [each.fetched for each in fakes] == [[TEXT], [TEXT]]
        after = get(server, "promptprefix", "mapped")["status"]
        assert before == after

        server.kubectl(
            "patch", "configmap", "texts", "-n", "ml", "--type=merge",
            "-p", json.dumps({"data": {"toolDefinitions": "[{]"}}),
        )  # fmt: skip
        await until(lambda: ready(server, "mapped")[:2] == ("False", "InvalidTools"))
        assert conditions(server, "mapped")["Stalled"]["status"] == "True"
        assert all(len(each.held) == 1 for each in fakes), "the text before it stays warm"
        server.kubectl("delete", "promptprefix", "mapped", "-n", "ml", "--timeout=5s")
        await until(lambda: all(each.held == {} for each in fakes), 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in fakes:
            await each.client.http.aclose()
