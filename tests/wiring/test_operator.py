"""The whole operator in process: kopf and the control API against a mock of the API server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix.payload import Payload
from promptprefix.wire import Phase, RouteTable
from promptprefix_operator.observation import SECRET_SECONDS
from promptprefix_operator.service import Operator

from .fake_kubernetes import ApiServer
from .operator_harness import (
    NEW_TEXT,
    OBJECT,
    PREFIXES,
    SECRET_TEXT,
    Client,
    FakeSidecar,
    api_server,
    condition_of,
    counted,
    exists,
    polling,
    resource,
    running,
    send,
    until,
)

POOLS = "inference.networking.k8s.io/v1/inferencepools"
POOL_PATH = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
PASSES = "promptprefix_operator_plan_seconds_count"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with api_server() as server:
        yield server


async def test_life_of_a_prefix_and_nothing_is_written_but_its_status(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(api, version_idle_seconds=1.0) as operator,
        polling(api, operator) as sidecar,
    ):
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        status = api.objects[PREFIXES, "ml", "triage"]["status"]
        assert (status["warm"], status["tokens"], status["blocks"]) == ("1/1", 320, 10)
        assert list(sidecar.texts.values()) == [SECRET_TEXT]

        await send(api, "PATCH", f"{OBJECT}/triage", {"spec": resource(NEW_TEXT)["spec"]})
        await until(lambda: list(sidecar.texts.values()) == [SECRET_TEXT, NEW_TEXT])
        await until(lambda: len(sidecar.held) == 1 and condition_of(api, "Ready")[0] == "True")

        await send(api, "DELETE", f"{OBJECT}/triage")
        await until(lambda: sidecar.held == {})

    patches = [each for each in api if each.method.value.upper() == "PATCH"]
    from_operator = [each for each in patches if "spec" not in json.loads(each.text)]
    assert {(str(each.resource.plural), each.subresource) for each in from_operator} == {
        ("promptprefixes", "status"),
        ("configmaps", None),
    }
    for request in from_operator:
        assert "must not leak" not in request.text
    events = [each.data for each in api if each.resource and each.resource.plural == "events"]
    assert [event["reason"] for event in events] == ["Warming", "Warm", "Warming", "Warm"]
    assert "must not leak" not in json.dumps(events) + caplog.text


async def test_a_status_that_is_right_is_not_written_again(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        writes = status_writes(api)
        passes = await counted(operator, PASSES)
        while await counted(operator, PASSES) < passes + 3:  # noqa: ASYNC110 - three resyncs
            await asyncio.sleep(0.05)
        assert status_writes(api) == writes
        assert await counted(operator, "promptprefix_apply_to_warm_seconds_count") == 1


async def test_a_status_waits_until_the_pods_are_read(api: ApiServer) -> None:
    await send(api, "POST", OBJECT, resource())
    api.forbidden = "/api/v1/namespaces/ml/pods"
    async with running(api) as operator:
        while await counted(operator, PASSES) < 3:  # noqa: ASYNC110 - two more passes
            await asyncio.sleep(0.05)
        assert status_writes(api) == 0
        assert (await routes(api, operator)).unknown == ("ml",)
        api.forbidden = ""
        async with polling(api, operator):
            await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
            table = await routes(api, operator)
            assert table.unknown == ()
            assert [each.pod for each in table.endpoints] == ["vllm-0"]
    events = [each.data for each in api if each.resource and each.resource.plural == "events"]
    assert "NoMatchingPods" not in {event["reason"] for event in events}


async def routes(api: ApiServer, operator: Operator) -> RouteTable:
    status, text = await Client(api, operator, "system/router").ask("GET", "/v1/routes")
    assert status == 200, text
    return RouteTable.model_validate_json(text)


def status_writes(api: ApiServer) -> int:
    return len([each for each in api if each.subresource == "status"])


async def test_a_deletion_is_over_at_once_and_reaches_the_sidecar(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        sidecar.stubborn = True
        await send(api, "DELETE", f"{OBJECT}/triage")
        assert not exists(api)
        await until(lambda: sidecar.wanted == set())


async def test_what_was_deleted_without_an_operator_is_released_by_the_next(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        held = sidecar.held
    await send(api, "DELETE", f"{OBJECT}/triage")
    async with running(api) as operator:
        later = FakeSidecar(Client(api, operator, "ml/vllm/vllm-0"))
        later.held = held
        task = asyncio.create_task(later.run())
        await until(lambda: later.applied is not None and not later.held)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_text_may_come_late_and_be_wrong(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource(content={"configMapRef": {"name": "texts"}}))
        await until(lambda: condition_of(api, "Ready") == ("False", "ContentNotFound"))
        config_map = {
            "metadata": {"name": "texts", "namespace": "ml", "uid": "cm"},
            "data": {"toolDefinitions": "[{]"},
        }
        await send(api, "POST", "/api/v1/namespaces/ml/configmaps", config_map)
        await until(lambda: condition_of(api, "Stalled") == ("True", "InvalidTools"))


async def test_an_inference_pool_selects_the_pods(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource(pods={"inferencePoolRef": {"name": "llm"}}))
        await until(lambda: condition_of(api, "Ready") == ("False", "PoolNotFound"))
        api.resources[POOLS] = {
            "kind": "InferencePool",
            "namespaced": True,
            "verbs": ["list", "watch", "patch", "create", "get", "delete"],
        }
        await send(api, "POST", POOL_PATH, pool(app="other"))
        await until(lambda: condition_of(api, "Ready") == ("False", "NoMatchingPods"))
        await send(api, "PATCH", f"{POOL_PATH}/llm", pool(app="v"))
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        await send(api, "DELETE", f"{POOL_PATH}/llm")
        await until(lambda: condition_of(api, "Ready") == ("False", "PoolNotFound"))
        assert len(sidecar.held) == 1


def pool(**labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "llm", "namespace": "ml", "uid": "pool"},
        "spec": {"selector": {"matchLabels": labels}},
    }


async def test_windows_and_orders_of_people_on_call(api: ApiServer) -> None:
    closed = datetime.now(UTC) + timedelta(days=100)
    schedule = f"{closed.minute} {closed.hour} {closed.day} {closed.month} *"
    windows = [{"name": "yearly", "schedule": schedule, "duration": "1h"}]
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource(windows=windows))
        await until(lambda: condition_of(api, "Ready") == ("True", "Released"))
        assert condition_of(api, "Active") == ("False", "OutsideWindows")
        assert sidecar.held == {}
        for annotation, value, active in (
            (WARM_NOW, "true", ("True", "WarmNow")),
            (UNPIN, "true", ("False", "Unpinned")),
            (UNPIN, "soon", ("True", "WarmNow")),
            (WARM_NOW, None, ("False", "OutsideWindows")),
        ):
            order = {"metadata": {"annotations": {annotation: value}}}
            await send(api, "PATCH", f"{OBJECT}/triage", order)
            await until(lambda active=active: condition_of(api, "Active") == active)
            phase = Phase.WARM if active[0] == "True" else Phase.RELEASED
            await until(lambda phase=phase: {e.phase for e in sidecar.held.values()} == {phase})
        await until(lambda: "InvalidAnnotation" in told(api))


def told(api: ApiServer) -> list[str]:
    events = (each.data for each in api if each.resource and each.resource.plural == "events")
    return [event["reason"] for event in events]


async def test_a_router_reads_the_texts_of_its_routes(api: ApiServer) -> None:
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        router = Client(api, operator, "system/router")
        [route] = RouteTable.model_validate_json(
            (await router.ask("GET", "/v1/routes"))[1]
        ).prefixes
        assert route.tokens == 320
        status, text = await router.ask("GET", f"/v1/content/{route.content_digest}")
        assert (status, Payload.model_validate_json(text).system) == (200, SECRET_TEXT)
        other = Client(api, operator, "ml/vllm/another")
        status, text = await other.ask("GET", f"/v1/content/{route.content_digest}")
        assert (status, SECRET_TEXT in text) == (403, False)
        await send(api, "DELETE", f"{OBJECT}/triage")
        status = 200
        while status != 403:
            status, _ = await router.ask("GET", f"/v1/content/{route.content_digest}")


async def test_a_cache_salt_reaches_who_holds_the_prefix_and_the_router(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    salt = "a-salt-that-must-not-leak"
    api.objects["v1/secrets", "ml", "tenant"] = {
        "metadata": {"name": "tenant", "namespace": "ml", "uid": "s", "resourceVersion": "1"},
        "data": {"salt": base64.b64encode(salt.encode()).decode()},
    }
    async with running(api) as operator, polling(api, operator) as sidecar:
        await send(api, "POST", OBJECT, resource(cacheSaltRef={"name": "tenant"}))
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        assert list(sidecar.salts.values()) == [salt]
        status, text = await Client(api, operator, "system/router").ask("GET", "/v1/routes")
        assert status == 200
        [route] = RouteTable.model_validate_json(text).prefixes
        assert (route.salt, route.id) == (salt, next(iter(sidecar.salts)))
        other = Client(api, operator, "ml/vllm/another")
        status, text = await other.ask("GET", f"/v1/salts/{route.id}")
        assert (status, salt in text) == (403, False)
    written = [each.text for each in api if each.method.value.upper() in ("PATCH", "POST")]
    assert "must-not-leak" not in "".join(written) + caplog.text


async def test_one_bad_resource_does_not_block_another(api: ApiServer) -> None:
    bad = resource(content={"inline": {"unknown": SECRET_TEXT}})
    bad["metadata"] |= {"name": "bad", "uid": "33-44"}
    async with running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, bad)
        await send(api, "POST", OBJECT, resource())
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        await until(lambda: condition_of(api, "Ready", "bad") == ("False", "InvalidSpec"))
        message = repr(api.objects[PREFIXES, "ml", "bad"].raw["status"])
        assert "spec.content.inline.unknown" in message
        assert SECRET_TEXT not in message


def secrets_read(api: ApiServer) -> list[str]:
    found = [each for each in api if each.resource and each.resource.plural == "secrets"]
    return [each.name or "" for each in found if each.namespace == "ml"]


async def test_secrets_are_read_again_two_a_second_at_most(api: ApiServer) -> None:
    names = [f"p{number}" for number in range(20)]
    text = base64.b64encode(SECRET_TEXT.encode()).decode()
    for name in names:
        meta = {"name": name, "namespace": "ml", "uid": f"u-{name}"}
        api.objects["v1/secrets", "ml", name] = {
            "metadata": meta,
            "data": {"systemInstructions": text},
        }
        declared = resource(content={"secretRef": {"name": name}})
        await send(api, "POST", OBJECT, declared | {"metadata": meta})
    async with running(api) as operator:
        assert set(secrets_read(api)) == set(names), "all are read before the first plan"
        began, read = time.monotonic(), len(secrets_read(api))
        passes = await counted(operator, PASSES)
        await until(lambda: len(secrets_read(api)) >= read + 6)
        assert time.monotonic() - began > 4 * SECRET_SECONDS
        assert await counted(operator, PASSES) > passes, "a plan reads none again"
