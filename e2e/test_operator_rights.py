"""The operator's process where rights, Secrets, sidecars or the CRD are missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e import waiting
from e2e.cluster import Cluster
from e2e.operator_stand import (
    OPERATOR,
    ROOT,
    SYSTEM,
    TEXT,
    Client,
    Operator,
    apply,
    conditions,
    control_plane,
    events,
    installed,
    make_pod,
    manifest,
    operator,
    process,
    ready,
    sidecars,
    token,
    until,
)
from promptprefix.crd import custom_resource_definition
from promptprefix.wire import AUDIENCE

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

CRD = "promptprefixes.promptprefix.dev"
WATCHED = 'promptprefix_operator_namespace_watched{namespace="dark"}'


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


def make_namespace(server: Cluster, name: str) -> None:
    server.kubectl("create", "namespace", name)
    server.kubectl("create", "configmap", "promptprefix-ca", "-n", name)


def grant(server: Cluster, namespace: str) -> None:
    """Give the operator the rights in another namespace that the chart would."""
    for each in installed(namespace, ("Role", "RoleBinding")):
        if each["metadata"]["namespace"] == namespace:
            apply(server, json.dumps(each))


async def eventually(running: Operator, series: str, value: float) -> None:
    async def reached() -> bool:
        return await running.metric(series) == value

    await waiting.until(reached, f"{series} is {value:g}", 40, 0.1)


async def test_a_namespace_that_cannot_be_read_is_told_and_blocks_no_other(
    server: Cluster, tmp_path: Path
) -> None:
    make_namespace(server, "dark")
    apply(server, manifest("triage", namespace="dark"))
    apply(server, manifest("triage"))
    async with operator(server, tmp_path, "dark,ml") as running, sidecars(server, running):
        await until(lambda: ready(server, "triage") == ("True", "Warm", 1))
        assert await running.metric(WATCHED) == 0
        await eventually(running, WATCHED.replace("dark", "ml"), 1)
        assert (await running.health("/healthz"))[0] == 200
        told = next(each for each in running.errors if each["event"].startswith("namespace can't"))
        assert told["namespace"] == "dark"
        assert 'cannot list resource "promptprefixes"' in told["error"]
        assert 'in the namespace "dark"' in told["error"]
        assert "chart's value namespaces" in told["remedy"]

        grant(server, "dark")
        await eventually(running, WATCHED, 1)
        await until(lambda: ready(server, "triage", "dark")[1] == "NoMatchingPods")

        server.kubectl("delete", "namespace", "dark", "--timeout=60s")
        make_namespace(server, "dark")
        grant(server, "dark")
        apply(server, manifest("again", namespace="dark"))
        await until(lambda: ready(server, "again", "dark")[1] == "NoMatchingPods", 60)
        assert ready(server, "triage") == ("True", "Warm", 1)
        server.kubectl("delete", "promptprefix", "triage", "-n", "ml", "--timeout=5s")
    server.kubectl("delete", "namespace", "dark", "--timeout=60s")


def make_secret(server: Cluster, name: str, **texts: str) -> None:
    metadata = {"name": name, "namespace": "ml"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": texts}
    apply(server, json.dumps(body))


def grant_secret(server: Cluster, name: str) -> None:
    """Let the operator get one Secret, as the chart's contentSecrets does."""
    server.kubectl(
        "create", "role", name, "-n", "ml",
        "--verb=get", "--resource=secrets", f"--resource-name={name}",
    )  # fmt: skip
    server.kubectl("create", "rolebinding", name, "-n", "ml", f"--role={name}", OPERATOR)


def message(server: Cluster, name: str, kind: str = "Ready") -> str:
    return str(conditions(server, name)[kind]["message"])


async def test_texts_of_secrets(server: Cluster, tmp_path: Path) -> None:
    grant_secret(server, "allowed")
    async with (
        operator(server, tmp_path, RESYNC_SECONDS="1") as running,
        sidecars(server, running) as fakes,
    ):
        apply(server, manifest("hidden", content={"secretRef": {"name": "allowed"}}))
        await until(lambda: ready(server, "hidden")[1] == "ContentNotFound")
        make_secret(server, "allowed", systemInstructions=TEXT, password="no text of ours")
        await until(lambda: ready(server, "hidden") == ("True", "Warm", 1))
        make_secret(server, "allowed", systemInstructions=f"Second. {TEXT}")
        await until(lambda: all(each.fetched == [TEXT, f"Second. {TEXT}"] for each in fakes))
        await until(lambda: ready(server, "hidden") == ("True", "Warm", 1))

        make_secret(server, "allowed", toolDefinitions='[{"must not leak": 1, "must not leak": 2}]')
        await until(lambda: ready(server, "hidden")[1] == "InvalidTools")
        assert "toolDefinitions" in message(server, "hidden")
        assert all(len(each.held) == 2 for each in fakes), "the texts before it stay warm"

        make_secret(server, "forbidden", systemInstructions=TEXT)
        apply(server, manifest("denied", content={"secretRef": {"name": "forbidden"}}))
        await until(lambda: ready(server, "denied")[1] == "ContentForbidden")
        assert "contentSecrets.ml" in message(server, "denied")
        assert conditions(server, "denied")["Stalled"]["status"] == "False"
        told = events(server, "hidden") + events(server, "denied")
        resources = server.kubectl("get", "promptprefix", "-n", "ml", "-o", "json")
        server.kubectl("delete", "promptprefix", "--all", "-n", "ml", "--timeout=5s")
    assert {"InvalidTools", "ContentForbidden"} <= {each["reason"] for each in told}
    assert "must not leak" not in json.dumps(told) + json.dumps(running.lines) + resources
    assert running.errors == []


async def test_cache_salts(server: Cluster, tmp_path: Path) -> None:
    salt, other = "a-salt-that-must-not-leak", "another-that-must-not-leak"
    grant_secret(server, "tenant")
    make_secret(server, "tenant", salt=salt, short="too-short")
    make_secret(server, "stranger", salt=salt)
    async with (
        operator(server, tmp_path, RESYNC_SECONDS="1") as running,
        sidecars(server, running) as fakes,
    ):
        apply(server, manifest("salted", cacheSaltRef={"name": "tenant"}, replicas=1))
        await until(lambda: ready(server, "salted") == ("True", "Warm", 1))
        holder, idle = sorted(fakes, key=lambda each: -len(each.held))
        assert (holder.salts, idle.salts) == ([salt], [])
        [placement] = holder.held
        answer = await idle.client.http.get(f"/v1/salts/{placement}")
        assert (answer.status_code, salt in answer.text) == (403, False)
        router = Client(
            server,
            running,
            token(server, SYSTEM, "promptprefix-router", f"--audience={AUDIENCE}"),
        )
        [route] = (await router.routes()).prefixes
        assert route.salt == salt

        make_secret(server, "tenant", salt=other, short="too-short")
        await until(lambda: holder.salts + idle.salts == [salt, other])
        await until(lambda: ready(server, "salted") == ("True", "Warm", 1))
        newest = (await router.routes()).prefixes[0]
        assert (newest.salt, newest.fingerprint) == (other, route.fingerprint)
        await router.http.aclose()

        apply(server, manifest("short", cacheSaltRef={"name": "tenant", "key": "short"}))
        apply(server, manifest("absent", cacheSaltRef={"name": "tenant", "key": "other"}))
        apply(server, manifest("stranger", cacheSaltRef={"name": "stranger"}))
        await until(lambda: ready(server, "short")[1] == "InvalidSalt")
        assert "data.short has 9 characters" in message(server, "short")
        await until(lambda: ready(server, "absent")[1] == "InvalidSalt")
        assert "has no key other" in message(server, "absent")
        await until(lambda: ready(server, "stranger")[1] == "ContentForbidden")
        assert "contentSecrets.ml" in message(server, "stranger")
        assert conditions(server, "short")["Stalled"]["status"] == "True"
        assert conditions(server, "stranger")["Stalled"]["status"] == "False"
        _, metrics = await running.health("/metrics")
        told = [events(server, name) for name in ("salted", "short", "absent", "stranger")]
        resources = server.kubectl("get", "promptprefix", "-n", "ml", "-o", "json")
        server.kubectl("delete", "promptprefix", "--all", "-n", "ml", "--timeout=5s")
    everything = json.dumps(told) + json.dumps(running.lines) + resources + metrics
    assert "must-not-leak" not in everything
    assert "too-short" not in everything
    assert running.errors == []


async def test_pods_that_people_must_hear_of(server: Cluster, tmp_path: Path) -> None:
    series = 'promptprefix_operator_uninjected_pods{namespace="ml"}'
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        assert await running.metric(series) == 0
        make_pod(server, "bare", "10.0.0.9", {"promptprefix.dev/inject": "true"})
        await until(lambda: [e["reason"] for e in events(server, "bare")] == ["NotInjected"])
        assert await running.metric(series) == 1
        fakes[0].failed_open = True
        await until(lambda: events(server, "vllm-0") != [], 40)
        [event] = events(server, "vllm-0")
        assert (event["type"], event["reason"]) == ("Warning", "ReadyWithoutPrefixes")
        assert event["involvedObject"]["kind"] == "Pod"
    async with operator(server, tmp_path) as running:
        await eventually(running, series, 1)
        server.kubectl("delete", "pod", "bare", "-n", "ml", "--force", "--grace-period=0")
        await eventually(running, series, 0)
        assert len(events(server, "bare")) == 1, "a new leader says nothing twice"
        assert await running.metric('promptprefix_operator_events_total{result="failed"}') is None


@asynccontextmanager
async def crd(server: Cluster, definition: dict[str, Any] | None) -> AsyncIterator[None]:
    """Put another CRD, or none, in the place of the right one for a while."""
    if definition is None:
        server.kubectl("delete", "crd", CRD, "--timeout=30s")
    else:
        server.kubectl("replace", "-f", "-", input=json.dumps(definition))
    try:
        yield
    finally:
        server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        server.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")


async def test_a_crd_that_is_too_old_is_refused_with_the_remedy(
    server: Cluster, tmp_path: Path
) -> None:
    old = custom_resource_definition()
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    content = schema["properties"]["spec"]["properties"]["content"]
    del content["properties"]["secretRef"]
    content["x-kubernetes-validations"] = []
    async with crd(server, old):
        await until(lambda: "secretRef" not in _openapi(server))
        async with process(server, tmp_path) as running:
            assert await asyncio.wait_for(running.process.wait(), 30) == 3
    [told] = running.errors
    assert "lacks spec.content.secretRef" in told["error"]
    assert "kubectl apply --server-side -f crds/" in told["error"]


async def test_a_crd_that_comes_late_is_waited_for(server: Cluster, tmp_path: Path) -> None:
    async with process(server, tmp_path) as running:
        async with crd(server, None), process(server, tmp_path) as waiting:
            await until(lambda: waiting.errors != [], 30)
            assert f"the CRD {CRD} is not there" in waiting.errors[0]["event"]
            assert waiting.process.returncode is None
        apply(server, manifest("late"))
        await until(lambda: ready(server, "late")[1] == "SidecarNotConnected", 60)
        assert running.process.returncode is None, "one that was there before heals too"


def _openapi(server: Cluster) -> str:
    return server.kubectl("get", "--raw", "/openapi/v3/apis/promptprefix.dev/v1alpha1")
