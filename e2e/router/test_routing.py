"""The real picker and the real Envoy between fake engines and a fake operator."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from e2e.router.samples import (
    CHAT,
    DECISION,
    VERSION,
    ask,
    counts,
    declared,
    pool,
    prefix,
    undeclared,
)
from e2e.router.stack import MODEL, TENANT_HEADER, RouterStack
from e2e.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_an_exact_match_goes_to_the_warm_pod(stack: RouterStack) -> None:
    before = await stack.metric(
        "promptprefix_router_decisions_total", match="fingerprint", outcome="warm"
    )
    responses = [await ask(stack, declared(f"question {i}")) for i in range(6)]
    assert [r.json()["engine"] for r in responses] == ["b"] * 6
    assert responses[0].headers[DECISION] == "warm;match=fingerprint"
    assert (
        await stack.metric(
            "promptprefix_router_decisions_total", match="fingerprint", outcome="warm"
        )
        == before + 6
    )


async def test_the_operator_hears_which_versions_requests_match(stack: RouterStack) -> None:
    matches = stack.fake_control.matches
    matches.clear()
    await asyncio.gather(*(ask(stack, declared(f"question {i}")) for i in range(5)))
    await ask(stack, undeclared())

    async def told() -> bool:
        return bool(matches) and sum(match.count for match in matches) >= 5

    await until(told, "the matches are told")
    assert {match.id for match in matches} == {VERSION}
    taken = await stack.metric("promptprefix_router_match_reports_total", result="taken")
    assert taken >= 1


async def test_the_header_names_the_prefix(stack: RouterStack) -> None:
    response = await ask(stack, undeclared(), x_promptprefix="support-triage")
    assert response.json()["engine"] == "b"
    assert response.headers[DECISION] == "warm;match=header"


async def test_undeclared_requests_spread_by_load(stack: RouterStack) -> None:
    await stack.settled()
    for engine in stack.engines:
        engine.hold.clear()
    tasks = [asyncio.create_task(ask(stack, undeclared())) for _ in range(9)]

    async def all_arrived() -> bool:
        return sum(engine.active for engine in stack.engines) == 9

    await until(all_arrived, "nine requests are active")
    # A reading may miss a request that is on its way from the decision to the engine.
    assert min(counts(stack).values()) >= 2
    for engine in stack.engines:
        engine.hold.set()
    assert {(await task).status_code for task in tasks} == {200}


async def test_the_least_loaded_of_two_warm_pods(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines, warm="ab"))
    await stack.settled()
    a, b, _ = stack.engines
    a.hold.clear()
    b.hold.clear()
    tasks = [asyncio.create_task(ask(stack, declared())) for _ in range(6)]

    async def all_arrived() -> bool:
        return a.active + b.active == 6

    await until(all_arrived, "six requests are active")
    found = counts(stack)
    assert found["c"] == 0
    assert min(found["a"], found["b"]) >= 2
    a.hold.set()
    b.hold.set()
    await asyncio.gather(*tasks)


async def test_a_declared_prefix_without_a_warm_pod_is_cold(stack: RouterStack) -> None:
    await stack.publish((prefix(),), pool(stack.engines))
    response = await ask(stack, declared())
    assert response.status_code == 200
    assert response.headers[DECISION] == "cold;match=fingerprint"


async def test_each_tenants_requests_go_where_its_blocks_are(stack: RouterStack) -> None:
    """Equal texts, warm on a for nobody, on b for one tenant, on c for another."""
    prefixes = tuple(
        prefix().model_copy(
            update={"id": key, "name": f"desk-{key}", "owner": owner, "salt": salt}
            | {"token_digests": (key * 64,)}
        )
        for key, owner, salt in (
            ("a", "", ""),
            ("b", "team-b", "salt-of-tenant-b"),
            ("c", "team-c", "salt-of-tenant-c"),
        )
    )
    endpoints = (
        each.model_copy(update={"warm": (key * 64,)})
        for key, each in zip("abc", pool(stack.engines), strict=True)
    )
    await stack.publish(prefixes, tuple(endpoints))
    for each in prefixes:
        tenant = {TENANT_HEADER: each.owner} if each.owner else {}
        for body, named in ((declared(), {}), (undeclared(), {"x_promptprefix": each.name})):
            response = await ask(stack, body, **named, **tenant)
            assert response.headers[DECISION].startswith("warm;")
            assert response.json()["engine"] == each.id
    response = await ask(stack, declared(), **{TENANT_HEADER: "team-d"})
    assert response.json()["engine"] == "a"


async def test_an_unknown_model_is_answered_by_an_engine(stack: RouterStack) -> None:
    response = await ask(stack, {**undeclared(), "model": "nobody/serves-this"})
    assert response.status_code == 200
    assert response.headers[DECISION] == "unrouted;match=undeclared"


async def test_streams_pass_chunk_by_chunk(stack: RouterStack) -> None:
    engine = stack.engines[1]
    engine.hold.clear()
    async with stack.client.stream(
        "POST", f"{stack.url}{CHAT}", json=declared(), headers={"x-test-stream": "1"}
    ) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data: first\n\n"
        engine.hold.set()
        assert b"".join([chunk async for chunk in chunks]) == b"data: last\n\n"


MALFORMED = (
    b"",
    b"{",
    b"\x00\xff\xfe",
    b"[" * 100_000,
    b'{"model": 7, "messages": "no"}',
    b"null",
)


async def test_a_malformed_body_arrives_unchanged(stack: RouterStack) -> None:
    before = await stack.metric("promptprefix_router_decisions_total", match="malformed")
    for body in MALFORMED:
        response = await stack.client.post(f"{stack.url}{CHAT}", content=body)
        assert response.status_code == 200
    seen = [request.body for engine in stack.engines for request in engine.seen]
    assert sorted(seen) == sorted(MALFORMED)
    after = await stack.metric("promptprefix_router_decisions_total", match="malformed")
    assert after == before + len(MALFORMED)


@pytest.mark.parametrize("megabytes", [5, 100])
async def test_large_bodies_pass(stack: RouterStack, megabytes: int) -> None:
    """The picker sees the first part: the header and the model still decide."""
    start = json.dumps({"model": MODEL, "messages": []})[:-1].encode() + b', "pad": "'
    body = start + b"x" * (megabytes * 1024 * 1024) + b'"}'
    response = await stack.client.post(
        f"{stack.url}{CHAT}", content=body, headers={"x-promptprefix": "support-triage"}
    )
    assert response.json() == {"engine": "b"}
    assert response.headers[DECISION] == "warm;match=header"
    (seen,) = stack.engines[1].seen
    assert (seen.size, seen.sha256) == (len(body), hashlib.sha256(body).hexdigest())


async def test_a_large_body_without_header_goes_to_the_least_loaded(stack: RouterStack) -> None:
    response = await ask(stack, undeclared("x" * 2_000_000))
    assert response.headers[DECISION] == "least-loaded;match=partial"


async def test_the_picker_stays_small(stack: RouterStack) -> None:
    for i in range(300):
        await ask(stack, declared(f"{i}" * 1000))
    assert await stack.metric("process_resident_memory_bytes") < 120 * 1024 * 1024
