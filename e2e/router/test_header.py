"""The header that names a prefix, resolved by the real Envoy without the picker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from e2e.router.fake_engine import FakeEngine
from e2e.router.samples import (
    CHAT,
    DECISION,
    DIGEST,
    ask,
    counts,
    declared,
    pool,
    prefix,
    undeclared,
)
from e2e.router.stack import MODEL, RouterStack
from e2e.waiting import until
from promptprefix.wire import RouteEndpoint

pytestmark = pytest.mark.asyncio(loop_scope="package")

NAME = "support-triage"
WARM = "warm;match=header"
COLD = "cold;match=header"
OTHER = "other/model"


async def named(stack: RouterStack, name: str = NAME) -> httpx.Response:
    """Send a request whose text is not declared, with the header."""
    return await ask(stack, undeclared(), x_promptprefix=name)


async def questions(stack: RouterStack) -> float:
    """Return how often Envoy asked the picker, answered or not."""
    return await stack.stat("envoy_cluster_upstream_rq_total", envoy_cluster_name="picker")


async def test_the_picker_is_not_asked(stack: RouterStack) -> None:
    """A picker that hangs delays nothing."""
    before = await questions(stack)
    assert stack.picker is not None
    stack.picker.send_signal(signal.SIGSTOP)
    try:
        responses = [await named(stack) for _ in range(20)]
    finally:
        stack.picker.send_signal(signal.SIGCONT)
    assert [(r.json()["engine"], r.headers[DECISION]) for r in responses] == [("b", WARM)] * 20
    assert await questions(stack) == before


async def test_the_body_is_not_waited_for(stack: RouterStack) -> None:
    """The engine has the request while the client still writes it."""
    engine = stack.engines[1]
    arrived = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"model": "'
        await arrived.wait()
        yield f'{MODEL}"}}'.encode()

    task = asyncio.create_task(
        stack.client.post(f"{stack.url}{CHAT}", content=body(), headers={"x-promptprefix": NAME})
    )

    async def active() -> bool:
        return engine.active == 1

    await until(active, "the engine reads the request")
    arrived.set()
    assert (await task).headers[DECISION] == WARM
    assert json.loads(engine.seen[0].body) == {"model": MODEL}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages?beta=true"])
async def test_every_picked_path(stack: RouterStack, path: str) -> None:
    response = await stack.client.post(
        f"{stack.url}{path}", json=undeclared(), headers={"X-PromptPrefix": NAME}
    )
    assert response.headers[DECISION] == WARM


async def test_other_paths_stay_what_they_are(stack: RouterStack) -> None:
    headers = {"x-promptprefix": NAME}
    base = stack.url
    assert (await stack.client.get(f"{base}/health", headers=headers)).text == "ok\n"
    for path in ("/metrics", "/sleep", f"{CHAT}/render", "/v1/chat/completions/../../sleep"):
        assert (await stack.client.post(f"{base}{path}", headers=headers)).status_code == 404
    models = await stack.client.get(f"{base}/v1/models", headers=headers)
    assert (models.status_code, models.headers.get(DECISION)) == (200, None)


ODD_NAMES = (
    b"unknown",
    b"support",
    b"support-triage-2",
    b"Support-Triage",
    b"support-triage, support-triage",
    b"support-triage\t;x",
    b".*",
    b"*",
    b"",
    b"none",
    b"\xc3\xa9\xff",
    b"x" * 8000,
    b"ordinary",
    b"127.0.0.1:80",
)


async def test_names_that_envoy_does_not_know_take_the_ordinary_way(stack: RouterStack) -> None:
    for name in ODD_NAMES:
        await stack.settled()
        response = await stack.client.post(
            f"{stack.url}{CHAT}", json=declared(), headers=[(b"x-promptprefix", name)]
        )
        assert response.status_code == 200, name[:40]
        assert response.headers[DECISION] == "warm;match=fingerprint", name[:40]
    for twice in ((NAME, NAME), (NAME, "unknown"), ("unknown", NAME)):
        response = await stack.client.post(
            f"{stack.url}{CHAT}",
            json=declared(),
            headers=[("x-promptprefix", each) for each in twice],
        )
        assert response.status_code == 200
        assert response.headers[DECISION].startswith("warm;match=")


async def test_a_name_of_another_namespace_is_unknown(stack: RouterStack) -> None:
    foreign = prefix().model_copy(update={"tenant": "other", "name": "theirs"})
    await stack.publish((prefix(), foreign), pool(stack.engines, warm="b"))
    response = await named(stack, "theirs")
    assert response.headers[DECISION] == "least-loaded;match=undeclared"


async def test_a_salted_prefix_is_left_to_the_picker(stack: RouterStack) -> None:
    salted = prefix().model_copy(update={"salt": "s3cret"})
    await stack.publish((salted,), pool(stack.engines, warm="b"))
    response = await named(stack)
    assert response.headers[DECISION] == "warm;match=header"
    (request,) = stack.engines[1].seen
    assert json.loads(request.body)["cache_salt"] == "s3cret", "the picker writes it"
    body = {**undeclared(), "cache_salt": "s3cret"}
    assert (await ask(stack, body, x_promptprefix=NAME)).headers[DECISION] == WARM
    files = [each for each in stack.folder.iterdir() if not each.is_socket()]
    assert files
    for file in files:
        assert b"s3cret" not in file.read_bytes()


def two_models(
    engines: Sequence[FakeEngine], warm: str, not_ready: str = ""
) -> list[RouteEndpoint]:
    """Return a pool whose last pod serves another model, and holds the digest all the same."""
    *ours, theirs = pool(engines, warm=warm, not_ready=not_ready)
    return [*ours, theirs.model_copy(update={"models": (OTHER,), "warm": (DIGEST,)})]


async def test_a_cold_name_goes_where_its_model_is_served(stack: RouterStack) -> None:
    await stack.publish((prefix(),), tuple(two_models(stack.engines, warm="")))
    responses = [await named(stack) for _ in range(24)]
    assert {r.headers[DECISION] for r in responses} == {COLD}
    found = counts(stack)
    assert found["c"] == 0
    assert min(found["a"], found["b"]) > 0


async def test_a_warm_pod_that_is_not_ready_leaves_it_to_its_model(stack: RouterStack) -> None:
    await stack.publish((prefix(),), tuple(two_models(stack.engines, warm="b", not_ready="b")))
    responses = [await named(stack) for _ in range(12)]
    assert {(r.json()["engine"], r.headers[DECISION]) for r in responses} == {("a", COLD)}


async def test_no_pod_of_the_model_is_a_clear_error(stack: RouterStack) -> None:
    """Never a pod that serves another model, whether the picker is there or not."""
    await stack.publish((prefix(),), tuple(two_models(stack.engines, warm="ab", not_ready="ab")))
    for _ in range(6):
        response = await named(stack)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_healthy_upstream"
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


async def test_a_dead_warm_pod_costs_no_request(stack: RouterStack) -> None:
    """The only warm pod is gone, and nobody knows yet: another pod of its model answers."""
    _, b, _ = stack.engines
    await b.stop()
    try:
        responses = [await named(stack) for _ in range(20)]
    finally:
        await b.start()
    assert {r.status_code for r in responses} == {200}
    assert counts(stack)["b"] == 0

    async def taken_back() -> bool:
        return bool((await named(stack)).json() == {"engine": "b"})

    await until(taken_back, "the pod is chosen again")


async def test_the_least_loaded_of_the_warm_pods(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines, warm="ab"))
    a, b, _ = stack.engines
    a.hold.clear()
    b.hold.clear()
    tasks = [asyncio.create_task(named(stack)) for _ in range(12)]

    async def all_arrived() -> bool:
        return a.active + b.active == 12

    await until(all_arrived, "twelve requests are active")
    assert min(counts(stack)["a"], counts(stack)["b"]) >= 4
    a.hold.set()
    b.hold.set()
    assert {(await task).headers[DECISION] for task in tasks} == {WARM}


async def test_the_last_names_stay_when_the_operator_is_away(stack: RouterStack) -> None:
    """Also over a restart of the picker, which then knows nothing: Envoy keeps its file."""
    await stack.fake_control.stop()
    try:
        assert (await named(stack)).headers[DECISION] == WARM
        await stack.stop_picker()
        assert (await named(stack)).headers[DECISION] == WARM
        await stack.start_picker()
        assert (await named(stack)).headers[DECISION] == WARM
        await stack.stop_envoy()
        await stack.start_envoy()
        assert (await named(stack)).headers[DECISION] == WARM
    finally:
        await stack.fake_control.start()


async def test_every_request_is_counted_once(stack: RouterStack) -> None:
    """Also what Envoy resolves while the picker is away, and after Envoy began anew."""
    version = "of-this-test"
    await stack.publish(
        (prefix().model_copy(update={"id": version}),), pool(stack.engines, warm="b")
    )

    def heard() -> int:
        return sum(each.count for each in stack.fake_control.matches if each.id == version)

    async def told(count: int) -> None:
        async def enough() -> bool:
            return heard() >= count

        await until(enough, f"the operator hears of {count} matches")
        assert heard() == count

    for _ in range(7):
        await named(stack)
    await told(7)
    await stack.stop_picker()
    for _ in range(5):
        await named(stack)
    await stack.start_picker()
    await told(12)
    await stack.stop_envoy()
    await stack.start_envoy()
    for _ in range(9):
        await named(stack)
    await told(21)
    name = "promptprefix_router_decisions_total"
    assert await stack.metric(name, match="header", outcome="warm") == 14
