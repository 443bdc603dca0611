"""The control API: who gets what, when a question is held, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from promptprefix.payload import Payload
from promptprefix.placement import Plan
from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import (
    HEAD_LADDER,
    MAX_REPORTED,
    EngineState,
    Phase,
    Placement,
    PlacementState,
    Revision,
    RouteEndpoint,
    RoutePrefix,
    RouteTable,
    Salt,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_operator import control_api
from promptprefix_operator.control_api import (
    MAX_BODY_BYTES,
    Access,
)
from promptprefix_operator.identity import Caller
from promptprefix_operator.sidecars import MAX_SIDECARS
from tests.unit.operator.control_setup import NOW, PAYLOAD, SALT, TERM, Setup, serve

SYNC = "/v1/sidecar/sync"
ENGINE = EngineState(healthy=True, address="a", port=1)


def placement(name: str = "a") -> Placement:
    return Placement(
        id=f"{name}-1",
        namespace="ml",
        name=name,
        model="m",
        fingerprint="f",
        content_digest=PAYLOAD.digest,
        pinning=Pinning.HARD,
    )


def planned(*, prefixes: tuple[RoutePrefix, ...] = (), **desired: tuple[Placement, ...]) -> Plan:
    return Plan(desired, prefixes, (), {}, frozenset())


def question(revision: Revision | None = None, *, healthy: bool = True) -> str:
    engine = EngineState(healthy=healthy, address="a", port=1)
    return SyncRequest(revision=revision, state=SidecarState(engine=engine)).model_dump_json()


@pytest.fixture
async def patient() -> AsyncIterator[Setup]:
    async for setup in serve(30):
        yield setup


@pytest.fixture
async def hasty() -> AsyncIterator[Setup]:
    async for setup in serve(0.02):
        yield setup


async def test_matches_are_dated_by_when_a_report_was_sent(hasty: Setup) -> None:
    told = PlacementState(id="a-1", phase=Phase.WARM, last_hit=40.0)
    request = SyncRequest(sent=100.0, state=SidecarState(engine=ENGINE, placements=(told,)))
    await hasty.ask("POST", SYNC, body=request.model_dump_json())
    [seen] = hasty.sidecars.connected()["u0"].state.placements
    assert seen.last_hit == NOW.timestamp() - 60
    spoilt = request.model_dump_json().replace("100.0", "NaN")
    assert (await hasty.ask("POST", SYNC, body=spoilt))[0] == 400


async def test_news_is_answered_by_the_plan_that_knows_it(patient: Setup) -> None:
    patient.publication.publish(planned(u0=()))
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question()))
    await patient.polls("u0")
    assert not asking.done(), "the published set was made without this report"
    assert patient.wakes == 1
    patient.publication.publish(planned(u0=(placement(),)))
    status, text = await asking
    assert status == 200
    assert SyncResponse.model_validate_json(text).placements == (placement(),)
    assert patient.counted("set") == 1


async def test_a_current_sidecar_waits_for_a_change_of_its_own_set(patient: Setup) -> None:
    patient.publication.publish(planned(u0=(), u1=()))
    revision = patient.publication.set_of("u0").revision
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question(revision)))
    await patient.polls("u0")
    patient.publication.publish(planned(u0=(), u1=(placement(),)))
    await asyncio.sleep(0)
    assert not asking.done()
    patient.publication.publish(planned(u0=(placement(),), u1=()))
    assert (await asking)[0] == 200


async def test_an_old_revision_without_other_news_is_answered_at_once(patient: Setup) -> None:
    patient.publication.publish(planned(u0=()))
    old = Revision(term=TERM - 1, number=99)
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question(old)))
    await patient.polls("u0")
    patient.publication.publish(planned(u0=()))
    assert (await asking)[0] == 200
    assert (await patient.ask("POST", SYNC, body=question(old)))[0] == 200


async def test_without_a_change_the_answer_is_204(hasty: Setup) -> None:
    hasty.publication.publish(planned(u0=()))
    revision = hasty.publication.set_of("u0").revision
    assert (await hasty.ask("POST", SYNC, body=question(revision)))[0] == 503, "no plan knows it"
    hasty.publication.publish(planned(u0=()))
    assert await hasty.ask("POST", SYNC, body=question(revision)) == (204, "")
    assert hasty.counted("unchanged") == 1


async def test_pods_of_a_namespace_that_was_not_read_keep_what_they_hold(
    patient: Setup, hasty: Setup
) -> None:
    old = Revision(term=TERM - 1, number=99)
    hasty.known.clear()
    hasty.publication.publish(planned())
    hasty.sidecars.report("u0", SidecarState(engine=ENGINE), old)
    assert await hasty.ask("POST", SYNC, body=question(old)) == (204, "")

    patient.known.clear()
    patient.publication.publish(planned())
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question(old)))
    await patient.polls("u0")
    patient.publication.publish(planned())
    await asyncio.sleep(0)
    assert not asking.done()
    patient.known.add("ml")
    patient.publication.publish(planned(u0=(placement(),)))
    status, text = await asking
    assert status == 200
    assert SyncResponse.model_validate_json(text).placements == (placement(),)


async def test_in_the_end_no_question_is_held(patient: Setup) -> None:
    patient.publication.publish(planned(u0=()))
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question()))
    await patient.polls("u0")
    patient.api.end()
    assert (await asyncio.wait_for(asking, 5))[0] == 503
    assert (await patient.ask("GET", "/v1/routes", "router"))[0] == 503


async def test_a_question_gives_way_to_a_later_one_of_the_same_pod(patient: Setup) -> None:
    def asked(at: float) -> str:
        body = SyncRequest.model_validate_json(question(patient.publication.set_of("u0").revision))
        return body.model_copy(update={"asked": at}).model_dump_json()

    patient.publication.publish(planned(u0=()))
    first = asyncio.create_task(patient.ask("POST", SYNC, body=asked(5.0)))
    await patient.polls("u0")
    patient.publication.publish(planned(u0=()))
    second = asyncio.create_task(patient.ask("POST", SYNC, body=asked(6.0)))
    assert await asyncio.wait_for(first, 5) == (204, "")
    assert await patient.ask("POST", SYNC, body=asked(5.5)) == (204, ""), "it came too late"
    assert not second.done()
    patient.publication.publish(planned(u0=(placement(),)))
    status, text = await asyncio.wait_for(second, 5)
    assert status == 200
    assert SyncResponse.model_validate_json(text).placements == (placement(),)


async def test_a_poll_that_is_given_up_is_counted_out(patient: Setup) -> None:
    patient.publication.publish(planned(u0=()))
    asking = asyncio.create_task(patient.ask("POST", SYNC, body=question()))
    await patient.polls("u0")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(5):
        while patient.sidecars.connected()["u0"].polls:  # noqa: ASYNC110
            await asyncio.sleep(0)


def reported(placement: str, count: int = 1) -> str:
    placements = ", ".join([placement] * count)
    engine = '{"healthy": true, "address": "a", "port": 1}'
    return f'{{"state": {{"engine": {engine}, "placements": [{placements}]}}}}'


REFUSED = [
    ("POST", SYNC, "", None, 401),
    ("POST", SYNC, "unknown", question(), 401),
    ("POST", SYNC, "other", question(), 403),
    ("POST", SYNC, "unbound", question(), 403),
    ("POST", SYNC, "router", question(), 403),
    ("POST", SYNC, "broken", question(), 503),
    ("POST", SYNC, "pod", "{", 400),
    ("POST", SYNC, "pod", '{"state": {"engine": {"healthy": "secret text"}}}', 400),
    ("POST", SYNC, "pod", reported('{"id": "a", "phase": "Warm"}', MAX_REPORTED + 1), 400),
    ("POST", SYNC, "pod", reported(f'{{"id": "a", "phase": "Warm", "tokens": {10**30}}}'), 400),
    ("POST", SYNC, "pod", "x" * (MAX_BODY_BYTES + 1), 413),
    ("POST", SYNC, "pod", question(Revision(term=TERM + 1, number=1)), 409),
    ("GET", "/v1/routes", "pod", None, 403),
    ("GET", "/v1/routes", "other", None, 403),
    ("GET", f"/v1/routes?term={TERM + 1}&number=1", "router", None, 409),
    ("GET", "/v1/routes?term=1", "router", None, 400),
    ("GET", f"/v1/content/{PAYLOAD.digest}", "other", None, 403),
    ("GET", f"/v1/content/{'0' * 64}", "pod", None, 403),
    ("GET", "/v1/salts/salted-1", "other", None, 403),
    ("GET", "/v1/salts/salted-1", "", None, 401),
    ("GET", "/v1/salts/salted-1", "router", None, 403),
    ("GET", "/v1/content/../../etc/passwd", "pod", None, 404),
]


async def test_the_largest_report_is_taken(hasty: Setup) -> None:
    hasty.publication.publish(planned(u0=()))
    each = PlacementState(
        id=f"{'0' * 36}-{'0' * 12}",
        phase=Phase.WARM,
        reason="WarmFailed",
        message="x" * 1024,
        token_digest="0" * 64,
        tokens=2**53,
        resident_tokens=2**53,
        pinned_tokens=2**53,
        pinned=Pinning.HARD,
        released=OnIdle.OFFLOAD,
        heads=("0" * 12,) * len(HEAD_LADDER),
        last_hit=1764500000.123456,
        counted=True,
        warm_seconds=1764500000.123456,
    )
    state = SidecarState(engine=ENGINE, placements=(each,) * MAX_REPORTED)
    body = SyncRequest(state=state).model_dump_json()
    assert len(body) < MAX_BODY_BYTES
    await hasty.ask("POST", SYNC, "pod", body)
    assert len(hasty.sidecars.connected()["u0"].state.placements) == MAX_REPORTED


@pytest.mark.parametrize(("method", "path", "token", "body", "expected"), REFUSED)
async def test_refusals(
    hasty: Setup, method: str, path: str, token: str, body: str | None, expected: int
) -> None:
    hasty.publication.publish(planned(u0=()))
    status, text = await hasty.ask(method, path, token, body)
    assert status == expected
    assert '"message"' in text
    assert "secret text" not in text
    if path == SYNC:
        assert hasty.counted(str(expected)) == 1
    assert hasty.sidecars.connected() == {}


async def test_a_salt_is_for_the_pods_that_were_told_to_hold_its_placement(hasty: Setup) -> None:
    hasty.publication.publish(planned(u0=(placement("salted"), placement("plain"))))
    answer = await hasty.ask("GET", "/v1/salts/salted-1")
    assert answer == (200, Salt(salt=SALT).model_dump_json())
    assert (await hasty.ask("GET", "/v1/salts/plain-1"))[0] == 404
    hasty.publication.publish(planned(u0=(placement("plain"),)))
    status, text = await hasty.ask("GET", "/v1/salts/salted-1")
    assert (status, SALT in text) == (403, False)


async def test_content_is_for_the_pods_that_were_told_to_hold_it(hasty: Setup) -> None:
    hasty.publication.publish(planned(u0=(placement(),), u1=()))
    path = f"/v1/content/{PAYLOAD.digest}"
    status, text = await hasty.ask("GET", path)
    assert (status, Payload.model_validate_json(text)) == (200, PAYLOAD)
    hasty.publication.publish(planned(u0=(), u1=(placement(),)))
    assert (await hasty.ask("GET", path))[0] == 403


async def test_a_router_reads_the_contents_of_the_route_table(hasty: Setup) -> None:
    path = f"/v1/content/{PAYLOAD.digest}"
    digest = PAYLOAD.digest
    prefix = RoutePrefix(name="a", tenant="ml", model="m", fingerprint="f", content_digest=digest)
    other = prefix.model_copy(update={"content_digest": "0" * 64})
    hasty.publication.publish(planned(prefixes=(prefix, other), u0=()))
    status, text = await hasty.ask("GET", path, "router")
    assert (status, Payload.model_validate_json(text)) == (200, PAYLOAD)
    assert (await hasty.ask("GET", f"/v1/content/{'0' * 64}", "router"))[0] == 404
    assert (await hasty.ask("GET", f"/v1/content/{'1' * 64}", "router"))[0] == 403
    for stranger in ("pod", "unbound", "other"):
        assert (await hasty.ask("GET", path, stranger))[0] == 403
    headers = {"Authorization": "Bearer router"}
    async with hasty.client.get(path, headers=headers) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
    hasty.publication.publish(planned(prefixes=(other,), u0=(placement(),)))
    assert (await hasty.ask("GET", path, "router"))[0] == 403, "held by a pod, but not routed"


async def held(setup: Setup, asking: asyncio.Task[tuple[int, str]]) -> None:
    """Return once the question waits for the next plan, or is answered."""
    while not setup.publication._changed._waiters and not asking.done():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_routes_are_held_until_they_change(patient: Setup) -> None:
    patient.publication.publish(planned())
    status, text = await patient.ask("GET", "/v1/routes", "router")
    assert status == 200
    first = patient.publication.routes
    assert text == first.model_dump_json()
    path = f"/v1/routes?term={TERM}&number={first.revision.number}"
    asking = asyncio.create_task(patient.ask("GET", path, "router"))
    await held(patient, asking)
    patient.publication.publish(planned(u0=(placement(),)))
    await held(patient, asking)
    assert not asking.done(), "a desired set is no route"
    prefix = RoutePrefix(name="a", tenant="ml", model="m", fingerprint="f")
    patient.publication.publish(planned(prefixes=(prefix,)))
    status, text = await asking
    assert (status, text) == (200, patient.publication.routes.model_dump_json())


async def test_a_router_keeps_the_last_leaders_table_until_the_sidecars_had_their_time(
    patient: Setup, hasty: Setup
) -> None:
    inherited = f"/v1/routes?term={TERM - 1}&number=9"
    for setup in (patient, hasty):
        setup.settling = True
        setup.publication.publish(planned())
    assert await hasty.ask("GET", inherited, "router") == (204, "")
    for path in ("/v1/routes", f"/v1/routes?term={TERM}&number=0"):
        assert (await hasty.ask("GET", path, "router"))[0] == 200
    asking = asyncio.create_task(patient.ask("GET", inherited, "router"))
    await held(patient, asking)
    patient.settling = False
    patient.publication.publish(planned())
    assert (await asking)[0] == 200


async def test_unchanged_routes_are_204_and_before_the_first_plan_503(hasty: Setup) -> None:
    assert (await hasty.ask("GET", "/v1/routes", "router"))[0] == 503
    hasty.publication.publish(planned())
    number = hasty.publication.routes.revision.number
    path = f"/v1/routes?term={TERM}&number={number}"
    assert await hasty.ask("GET", path, "router") == (204, "")


async def test_too_many_sidecars_are_refused(hasty: Setup) -> None:
    state = SidecarState(engine=EngineState(healthy=True, address="a", port=1))
    for index in range(MAX_SIDECARS):
        hasty.sidecars.report(f"x{index}", state, None)
    assert (await hasty.ask("POST", SYNC, body=question()))[0] == 503


async def test_a_body_that_does_not_come_is_not_waited_for(
    hasty: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "BODY_SECONDS", 0.02)
    host, port = hasty.client.server.host, hasty.client.server.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"POST {SYNC} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer pod\r\n"
        'Content-Length: 9\r\n\r\n{"'.encode()
    )
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    assert hasty.sidecars.connected() == {}


async def test_a_tenants_own_router_gets_nothing_of_the_others(hasty: Setup) -> None:
    ours = RoutePrefix(
        name="a", tenant="ml", model="m", fingerprint="f", content_digest=PAYLOAD.digest, salt=SALT
    )
    theirs = ours.model_copy(update={"tenant": "chat", "content_digest": "1" * 64, "salt": ""})
    places = tuple(
        RouteEndpoint(
            pod_uid=namespace, pod="p", namespace=namespace, address="10.0.0.1", port=1,
            models=("m",), ready=True,
        )
        for namespace in ("ml", "chat")
    )  # fmt: skip
    hasty.publication.publish(replace(planned(prefixes=(ours, theirs)), endpoints=places))
    whole = hasty.publication.routes
    routers = {"router": {"ml", "chat"}, "ml-router": {"ml"}, "chat-router": {"chat"}}
    for router, tenants in routers.items():
        status, text = await hasty.ask("GET", "/v1/routes?tenant=chat", router)
        table = RouteTable.model_validate_json(text)
        assert (status, table.revision) == (200, whole.revision)
        assert {each.tenant for each in table.prefixes} == tenants
        assert {each.namespace for each in table.endpoints} == tenants
        allowed = 200 if "ml" in tenants else 403
        assert (await hasty.ask("GET", f"/v1/content/{PAYLOAD.digest}", router))[0] == allowed
        assert (SALT in text) is ("ml" in tenants)
    assert len(hasty.routers) == 2, "the router of ml serves no other tenant"


@pytest.mark.parametrize(
    ("namespace", "tenant"), [("system", None), ("ml", "ml"), ("edge", None), ("chat", "chat")]
)
def test_whose_a_router_is(namespace: str, tenant: str | None) -> None:
    """One in the operator's namespace is the installation's, even where that is served too."""
    access = Access(("ml", "chat", "system"), (), "system")
    router = Caller(namespace, "router", "u")
    assert access.tenant_of(router) == tenant
    assert access.may_serve(router, "ml") is (tenant in (None, "ml"))
