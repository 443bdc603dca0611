"""Tenants behind the real router: who matches what, which salt reaches the engine, and bypasses."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from e2e.router.fake_engine import SeenRequest
from e2e.router.samples import CHAT, DECISION, DIGEST, counts, declared, pool, prefix, undeclared
from e2e.router.stack import TENANT, TENANT_HEADER, RouterStack
from e2e.waiting import until
from promptprefix.wire import RoutePrefix, TenantSalt

pytestmark = pytest.mark.asyncio(loop_scope="package")

SALTS = {"acme": "salt-of-acme-0123456789", "blau": "salt-of-blau-0123456789"}
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "cache_salt")
MARK = "x-promptprefix-rewrite"
Headers = dict[str, str] | Sequence[tuple[str, str]]


def of_tenant(owner: str, **fields: Any) -> RoutePrefix:
    own = {"owner": owner, "name": f"{owner}-desk", "salt": SALTS[owner], "id": owner}
    changes = {**own, **fields}
    return prefix().model_copy(update=changes)


async def publish(stack: RouterStack, *prefixes: RoutePrefix) -> None:
    """Publish prefixes; what is warm is warm on b."""
    await stack.publish(prefixes, pool(stack.engines, warm="b"))


async def send(
    stack: RouterStack, body: bytes | dict[str, Any], tenant: str = "", headers: Headers = ()
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = [(TENANT_HEADER, tenant)] if tenant else []
    more = headers.items() if isinstance(headers, dict) else headers
    return await stack.client.post(f"{stack.url}{CHAT}", content=content, headers=[*named, *more])


def seen(stack: RouterStack) -> SeenRequest:
    """Return the one request that reached an engine, and forget it."""
    (found,) = [each for engine in stack.engines for each in engine.seen]
    for engine in stack.engines:
        engine.seen.clear()
    return found


def salts(request: SeenRequest) -> list[Any]:
    pairs = json.loads(request.body, object_pairs_hook=list)
    return [value for name, value in pairs if name == "cache_salt"]


async def test_a_tenants_prefix_is_its_own_and_its_salt_is_set(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"))
    ours = await send(stack, declared(), "acme")
    assert ours.headers[DECISION] == "warm;match=fingerprint"
    request = seen(stack)
    assert salts(request) == [SALTS["acme"]]
    assert {**json.loads(request.body), "cache_salt": None} == {**declared(), "cache_salt": None}
    assert request.headers["content-length"] == str(len(request.body))
    assert MARK not in request.headers
    assert request.headers[TENANT_HEADER] == "acme"
    for tenant in ("", "blau", "ACME", "acme "[:-1] + "x"):
        theirs = await send(stack, declared(), tenant)
        assert theirs.headers[DECISION] == "least-loaded;match=undeclared"
        assert salts(seen(stack)) == []


async def test_equal_texts_of_two_tenants(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"), of_tenant("blau"))
    for tenant, salt in SALTS.items():
        answer = await send(stack, declared(), tenant)
        assert answer.headers[DECISION] == "warm;match=fingerprint"
        assert salts(seen(stack)) == [salt]


async def test_a_name_counts_within_its_tenant(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"), prefix())
    named = {"x-promptprefix": "acme-desk"}
    ours = await send(stack, undeclared(), "acme", named)
    assert ours.headers[DECISION] == "warm;match=header"
    assert salts(seen(stack)) == [SALTS["acme"]]
    for tenant in ("", "blau"):
        theirs = await send(stack, undeclared(), tenant, named)
        assert theirs.headers[DECISION] == "least-loaded;match=undeclared"
        assert salts(seen(stack)) == []
    shared = await send(stack, undeclared(), "", {"x-promptprefix": "support-triage"})
    assert shared.headers[DECISION] == "warm;match=header"
    assert salts(seen(stack)) == []


async def test_a_tenants_other_requests_get_its_salt(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"), prefix())
    for body in (undeclared(), declared()):
        answer = await send(stack, body, "acme")
        assert answer.status_code == 200
        assert salts(seen(stack)) == [SALTS["acme"]]
    path = f"{stack.url}/v1/completions"
    body = {"model": "fake/model", "prompt": "x"}
    assert (await stack.client.post(path, json=body, headers={TENANT_HEADER: "acme"})).is_success
    assert salts(seen(stack)) == [SALTS["acme"]]


OWN = (
    b'{"cache_salt":"%s",',
    b'{"cache_salt":"%s","cache_salt":"%s",',
    b'{"cache\\u005fsalt":"%s",',
    b'{"' + ESCAPED.encode() + b'":"%s","cache_salt":null,',
    b'{"cache_salt":{"cache_salt":"%s"},',
)


@pytest.mark.parametrize("start", OWN)
@pytest.mark.parametrize("guess", [SALTS["blau"], "mine"])
async def test_a_clients_own_salt_is_replaced_or_removed(
    stack: RouterStack, start: bytes, guess: str
) -> None:
    await publish(stack, of_tenant("acme"), of_tenant("blau"), prefix())
    body = start.replace(b"%s", guess.encode()) + json.dumps(declared()).encode()[1:]
    await send(stack, body, "acme")
    assert set(salts(seen(stack))) == {SALTS["acme"]}
    for tenant in ("", "nobody"):
        assert (await send(stack, body, tenant)).status_code == 200
        request = seen(stack)
        assert salts(request) == []
        assert guess.encode() not in request.body


async def test_what_only_looks_like_a_salt_stays(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"))
    body = {**undeclared('"cache_salt": "x"'), "metadata": {"cache_salt": "x"}, "Cache_Salt": 1}
    raw = json.dumps(body).encode()
    await send(stack, raw)
    assert seen(stack).body == raw
    await send(stack, raw, "acme")
    changed = seen(stack)
    assert changed.body == raw.replace(b"{", b'{"cache_salt":"%s",' % SALTS["acme"].encode(), 1)


async def test_chunked_bodies_and_other_encodings(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"))

    async def chunks() -> AsyncIterator[bytes]:
        raw = json.dumps({**declared(), "cache_salt": "mine"}).encode()
        for start in range(0, len(raw), 50):
            yield raw[start : start + 50]

    answer = await stack.client.post(
        f"{stack.url}{CHAT}", content=chunks(), headers={TENANT_HEADER: "acme"}
    )
    assert answer.headers[DECISION] == "warm;match=fingerprint"
    request = seen(stack)
    assert salts(request) == [SALTS["acme"]]
    assert "content-length" not in request.headers
    for encoding in ("utf-16", "utf-32-le", "utf-8-sig"):
        await send(stack, json.dumps({**undeclared(), "cache_salt": "x"}).encode(encoding), "acme")
        assert salts(seen(stack)) == [SALTS["acme"]]


UNREADABLE = (
    b"{",
    b"[]",
    gzip.compress(json.dumps(undeclared()).encode()),
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)


async def test_what_can_not_get_its_salt_is_refused(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"))
    for body in UNREADABLE:
        headers = {"content-encoding": "gzip"} if body.startswith(b"\x1f") else {}
        refused = await send(stack, body, "acme", headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "body_unreadable")
        assert (await send(stack, body, "", headers)).status_code == 200
        assert seen(stack).headers.get("content-encoding") == headers.get("content-encoding")
    long = json.dumps(undeclared("x" * 1_100_000)).encode()
    refused = await send(stack, long, "acme")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_long")
    assert (await send(stack, long, "blau")).status_code == 200
    # It grows beyond the limit with its salt.
    brim = json.dumps(undeclared("x" * (1_048_576 - 100))).encode()
    assert len(brim) < 1_048_576 < len(brim) + 40
    seen(stack)
    refused = await send(stack, brim, "acme")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_long")
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


async def test_two_tenants_are_none(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"))
    for headers in (
        [(TENANT_HEADER, "blau"), (TENANT_HEADER, "acme")],
        [(TENANT_HEADER, "acme,blau")],
        [(TENANT_HEADER, "acme"), (TENANT_HEADER.upper(), "")],
    ):
        answer = await send(stack, declared(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "several_tenants")
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}


async def test_an_empty_tenant_is_nobody(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"), prefix())
    answer = await send(stack, declared(), headers={TENANT_HEADER: ""})
    assert answer.headers[DECISION] == "warm;match=fingerprint"
    assert MARK not in seen(stack).headers


@pytest.mark.parametrize("mark", ["none", "text", "salt", "x"])
async def test_a_forged_mark_is_stripped(stack: RouterStack, mark: str) -> None:
    await publish(stack, of_tenant("acme"))
    for name in (MARK, MARK.upper()):
        await send(stack, declared(), "acme", {name: mark})
        assert salts(seen(stack)) == [SALTS["acme"]]
        await send(stack, undeclared(), "", {name: mark})
        assert MARK not in seen(stack).headers


async def test_without_the_picker_no_request_of_a_tenant_passes(stack: RouterStack) -> None:
    await publish(stack, of_tenant("acme"), prefix())
    await stack.stop_picker()
    try:
        for headers in ({}, {MARK: "none"}, {MARK: "salt"}, {"x-promptprefix": "acme-desk"}):
            answer = await send(stack, undeclared(), "acme", headers)
            assert answer.status_code == 503
            assert "tenant" in answer.json()["error"]["message"]
        assert counts(stack) == {"a": 0, "b": 0, "c": 0}
        assert (await send(stack, undeclared())).status_code == 200
        models = f"{stack.url}/v1/models"
        assert (await stack.client.get(models, headers={TENANT_HEADER: "acme"})).status_code == 200
    finally:
        await stack.start_picker()


async def test_if_only_the_second_door_is_away_salts_fail_closed(stack: RouterStack) -> None:
    await stack.stop_picker()
    await stack.start_picker(REWRITE_PORT=stack.spare_port)
    try:
        await publish(stack, of_tenant("acme"), prefix())
        before = await stack.stat("envoy_http_ext_proc_failure_mode_allowed")
        assert (await send(stack, declared(), "acme")).status_code == 503
        assert counts(stack) == {"a": 0, "b": 0, "c": 0}
        own = {**declared(), "cache_salt": "mine"}
        assert (await send(stack, own)).status_code == 200
        assert salts(seen(stack)) == ["mine"], "it isolates its client and gives it nothing"
        assert await stack.stat("envoy_http_ext_proc_failure_mode_allowed") == before + 1
    finally:
        await stack.stop_picker()
        await stack.start_picker()


async def test_salts_that_differ_are_shown(stack: RouterStack) -> None:
    twin = of_tenant("acme", name="acme-again", salt=SALTS["blau"], token_digests=(DIGEST[::-1],))
    await publish(stack, of_tenant("acme"), twin)

    async def shown() -> bool:
        return await stack.metric("promptprefix_router_salt_conflicts") == 2

    await until(shown, "the text and the tenant are counted")
    await send(stack, declared(), "acme")
    assert salts(seen(stack)) == [SALTS["blau"]], "the first name in order"


async def test_a_tenant_is_never_resolved_without_the_picker(stack: RouterStack) -> None:
    """A name that Envoy resolves alone: with a tenant the picker is asked, for its salt."""
    await publish(stack, of_tenant("acme"), prefix())
    named = {"x-promptprefix": "support-triage"}
    for tenant, salt in (("acme", [SALTS["acme"]]), ("blau", []), ("", [])):
        assert (await send(stack, undeclared(), tenant, named)).status_code == 200
        assert salts(seen(stack)) == salt
    twice = [("x-promptprefix", "support-triage"), (TENANT_HEADER, ""), (TENANT_HEADER, "acme")]
    assert (await send(stack, undeclared(), headers=twice)).status_code == 400


async def test_a_tenant_in_bytes_that_are_no_text_does_not_pass_the_picker_by(
    stack: RouterStack,
) -> None:
    """Only the picker takes a client's own salt out of the body."""
    await publish(stack, of_tenant("acme"), prefix())
    body = json.dumps({**undeclared(), "cache_salt": "mine"}).encode()
    url, name = f"{stack.url}{CHAT}", (b"x-promptprefix", b"support-triage")
    odd, ours = (TENANT_HEADER.encode(), b"\xff"), (TENANT_HEADER.encode(), b"acme")
    assert (await stack.client.post(url, content=body, headers=[name, odd])).status_code == 200
    assert salts(seen(stack)) == []
    both = await stack.client.post(url, content=body, headers=[name, odd, ours])
    assert both.status_code == 400


async def test_a_tenant_whose_salt_nobody_can_read_is_refused(stack: RouterStack) -> None:
    """Else it would share blocks with everybody while its Secret can't be read."""
    endpoints = pool(stack.engines, warm="b")
    unread = TenantSalt(namespace=TENANT, tenant="acme")
    await stack.publish((prefix(),), endpoints, (unread,))
    answer = await send(stack, declared(), "acme")
    assert answer.status_code == 503
    assert counts(stack) == {"a": 0, "b": 0, "c": 0}
    assert (await send(stack, declared(), "blau")).status_code == 200
    known = unread.model_copy(update={"salt": SALTS["acme"]})
    await stack.publish((prefix(),), endpoints, (known,))
    for engine in stack.engines:
        engine.seen.clear()
    assert (await send(stack, undeclared(), "acme")).status_code == 200
    assert salts(seen(stack)) == [SALTS["acme"]]
