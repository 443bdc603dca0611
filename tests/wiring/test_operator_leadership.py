"""Two operators in one process against a mock of the API server: one acts, the other stands by."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kmock import Server
from kubernetes.aio.client.configuration import Configuration

from promptprefix.resource import KIND
from promptprefix.wire import STANDBY_STATUS
from promptprefix_operator import serving_certificate, trust
from promptprefix_operator.certificates import new_authority, new_serving
from promptprefix_operator.leadership import Times
from promptprefix_operator.service import Operator
from promptprefix_operator.settings import Settings

from .fake_kubernetes import ApiServer
from .operator_harness import until

LEASES = "coordination.k8s.io/v1/leases"
HOOKS = "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME = "promptprefix-operator"
TIMES = Times(lease=6, retry=0.05)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server, Server(server):
        listed = (("v1/pods", "Pod"), ("v1/configmaps", "ConfigMap"), ("v1/events", "Event"))
        watched = (*listed, ("promptprefix.dev/v1alpha1/promptprefixes", KIND))
        for resource, kind in watched:
            verbs = ["list", "watch", "patch", "create", "get"]
            server.resources[resource] = {"kind": kind, "namespaced": True, "verbs": verbs}
        server.resources["v1/namespaces"] = {"kind": "Namespace", "namespaced": False}
        server.resources["apiextensions.k8s.io/v1/customresourcedefinitions"] = {
            "kind": "CustomResourceDefinition",
            "namespaced": False,
        }
        server.resources[LEASES] = {"kind": "Lease", "namespaced": True, "verbs": ["create"]}
        server.objects["v1/secrets", "system", f"{NAME}-tls"] = {
            "metadata": named(f"{NAME}-tls", "system")
        }
        for namespace in ("ml", "system"):
            server.objects["v1/configmaps", namespace, "promptprefix-ca"] = {
                "metadata": named("promptprefix-ca", namespace)
            }
        yield server


def named(name: str, namespace: str) -> dict[str, str]:
    return {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}


@dataclass
class Replica:
    operator: Operator
    task: asyncio.Task[None]

    @property
    def leads(self) -> bool:
        return self.operator.ready.is_set()

    @property
    def open(self) -> bool:
        return self.operator.ports.answering.is_set()


@asynccontextmanager
async def replica(api: ApiServer, name: str, **changed: Any) -> AsyncIterator[Replica]:
    settings = Settings(
        namespaces=("ml",),
        own_namespace="system",
        identity=name,
        serving_names=("127.0.0.1",),
        listen_host="127.0.0.1",
        listen_port=0,
        metrics_host="127.0.0.1",
        metrics_port=0,
        webhook_host="127.0.0.1",
        webhook_port=0,
        resync_seconds=1.0,
    ).model_copy(update=changed)
    made = (lambda _: hello()) if settings.webhook_configuration else None
    configuration = Configuration(host=str(api.url).rstrip("/"))
    operator = Operator(settings, configuration, webhook=made, times=TIMES)
    task = asyncio.create_task(operator.run())
    try:
        yield Replica(operator, task)
    finally:
        operator.stop.set()
        await asyncio.wait_for(task, 10)


def hello() -> web.Application:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", answer)
    return app


def lease(api: ApiServer) -> dict[str, Any]:
    return dict(api.objects[LEASES, "system", NAME].raw).get("spec", {})


def trusting(api: ApiServer) -> ssl.SSLContext:
    data = api.objects["v1/configmaps", "ml", "promptprefix-ca"]["data"]
    return ssl.create_default_context(cadata=data["ca.crt"])


async def ask(api: ApiServer, of: Replica) -> int:
    url = f"https://127.0.0.1:{of.operator.ports.control}/v1/routes"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=trusting(api)) as answer,
    ):
        return answer.status


async def probe(of: Replica, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{of.operator.ports.metrics}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


def published(api: ApiServer) -> bool:
    return "data" in dict(api.objects["v1/configmaps", "ml", "promptprefix-ca"].raw)


async def test_one_answers_the_other_refuses_and_follows_at_once(api: ApiServer) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(api, "a"))
        await until(lambda: first.leads)
        async with replica(api, "b") as second:
            await until(lambda: second.open and published(api))
            assert not second.leads
            assert (await ask(api, first), await ask(api, second)) == (401, STANDBY_STATUS)
            assert lease(api)["holderIdentity"].startswith("a_")
            for each, role, gauge in ((first, "leader", 1), (second, "standby", 0)):
                status, body = await probe(each, "/healthz")
                assert (status, json.loads(body)["role"]) == (200, role)
                metrics = (await probe(each, "/metrics"))[1]
                assert f"promptprefix_operator_leader {gauge}.0" in metrics
            term = secret_term(api)
            await stack.aclose()
            await until(lambda: second.leads, 3)
            assert lease(api)["holderIdentity"].startswith("b_")
            assert secret_term(api) > term
            assert await ask(api, second) == 401
            counted = "promptprefix_operator_leader_transitions_total 2.0"
            assert counted in (await probe(second, "/metrics"))[1]
    assert lease(api)["holderIdentity"] == ""


def secret_term(api: ApiServer) -> int:
    data = api.objects["v1/secrets", "system", f"{NAME}-tls"]["data"]
    return int(base64.b64decode(data["term"]))


async def test_who_loses_the_lease_ends(api: ApiServer) -> None:
    async with replica(api, "a") as first:
        await until(lambda: first.leads)
        taken = {**lease(api), "holderIdentity": "somebody"}
        path = f"/apis/coordination.k8s.io/v1/namespaces/system/leases/{NAME}"
        await take(api, path, taken)
        await until(first.task.done)
        assert first.task.exception() is None
    assert lease(api)["holderIdentity"] == "somebody", "a lost lease is not released"


async def take(api: ApiServer, path: str, spec: dict[str, Any]) -> None:
    """Write the Lease as another operator would, between two renewals."""
    url = str(api.url).rstrip("/") + path
    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.get(url) as answer:
                found = await answer.json()
            async with session.put(url, json={**found, "spec": spec}) as answer:
                if answer.status == 200:
                    return
    raise AssertionError("always a conflict")


async def test_the_webhook_is_served_by_both_and_its_ca_kept(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "CHECK_SECONDS", 0.05)
    api.resources[HOOKS] = {"kind": "MutatingWebhookConfiguration", "namespaced": False}
    api.objects[HOOKS, None, "injector"] = {
        "metadata": {"name": "injector", "resourceVersion": "1"},
        "webhooks": [{"name": "a", "clientConfig": {"service": {"name": "s"}}}],
    }
    async with (
        replica(api, "a", webhook_configuration="injector") as first,
        replica(api, "b", webhook_configuration="injector") as second,
    ):
        await until(lambda: bool(first.operator.ports.webhook and second.operator.ports.webhook))
        await until(lambda: published(api))
        bundle = api.objects["v1/configmaps", "ml", "promptprefix-ca"]["data"]["ca.crt"]
        wanted = base64.b64encode(bundle.encode()).decode()
        for _ in range(2):  # at first, and after somebody reset it
            await until(lambda: client_config(api).get("caBundle") == wanted)
            assert client_config(api)["service"] == {"name": "s"}
            await reset(api)
        for each in (first, second):
            url = f"https://127.0.0.1:{each.operator.ports.webhook}/"
            async with aiohttp.ClientSession() as session:
                asking = session.get(
                    url, ssl=trusting(api), server_hostname="promptprefix-webhook.system.svc"
                )
                async with asking as answer:
                    assert await answer.text() == "hello"


async def test_without_the_webhooks_files_only_the_webhook_is_missing(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_certificate, "FILES_SECONDS", 0.05)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    files = {"webhook_cert_file": certificate, "webhook_key_file": key}
    async with replica(api, "a", webhook_configuration="injector", **files) as only:
        await until(lambda: only.leads)
        assert only.operator.ports.webhook == 0
        assert (await probe(only, "/healthz"))[0] == 200
        now = datetime.now(UTC)
        made = new_serving(new_authority(now), ["promptprefix-webhook"], now)
        key.write_bytes(made.key)
        certificate.write_bytes(made.certificate)
        await until(lambda: only.operator.ports.webhook > 0)


async def test_our_ca_is_not_published_where_it_does_not_sign_the_control_port(
    api: ApiServer, tmp_path: Path
) -> None:
    api.resources[HOOKS] = {"kind": "MutatingWebhookConfiguration", "namespaced": False}
    api.objects[HOOKS, None, "injector"] = {
        "metadata": {"name": "injector", "resourceVersion": "1"},
        "webhooks": [{"name": "a", "clientConfig": {"service": {"name": "s"}}}],
    }
    now = datetime.now(UTC)
    made = new_serving(new_authority(now), ["127.0.0.1"], now)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    key.write_bytes(made.key)
    certificate.write_bytes(made.certificate)
    files = {"tls_cert_file": certificate, "tls_key_file": key}
    async with replica(api, "a", webhook_configuration="injector", **files) as only:
        await until(lambda: "caBundle" in client_config(api))
        await until(lambda: only.leads)
        for namespace in ("ml", "system"):
            found = dict(api.objects["v1/configmaps", namespace, "promptprefix-ca"].raw)
            assert "data" not in found


def client_config(api: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = dict(api.objects[HOOKS, None, "injector"].raw)["webhooks"][0]
    return dict(found["clientConfig"])


async def reset(api: ApiServer) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/injector"
    webhooks = [{"name": "a", "clientConfig": {"service": {"name": "s"}}}]
    url = str(api.url).rstrip("/") + path
    async with (
        aiohttp.ClientSession() as session,
        session.patch(url, json={"webhooks": webhooks}) as answer,
    ):
        assert answer.status == 200


async def test_alone_and_without_a_lease(api: ApiServer) -> None:
    async with replica(api, "a", leader_election=False) as only:
        await until(lambda: only.leads and published(api))
        assert await ask(api, only) == 401
        with pytest.raises(KeyError):
            lease(api)
