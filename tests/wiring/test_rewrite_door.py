"""The door for bodies, over gRPC, as Envoy's filter speaks to it."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from e2e.router.stack import free_ports
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import Revision, RoutePrefix, RouteTable, TenantSalt
from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.gateway.ext_proc_messages import ProcessingRequest, ProcessingResponse
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.rewriting.respelling import Speller
from promptprefix_router.rewriting.rewrite_door import SERVICE, RewriteDoor
from promptprefix_router.rewriting.rewriter import Rewriter

MODEL, TENANT, CHAT = "m", "ml", "/v1/chat/completions"
LIMIT = 4096
PAYLOAD = Payload(systemInstructions="Zurück zum Ende.")


class Stand:
    """The door and a client of it."""

    def __init__(self, port: int) -> None:
        memo = FingerprintMemo(8)
        self.metrics = RouterMetrics(memo, time.monotonic)
        self.picker = Picker(
            Matcher(memo),
            Chooser(LoadLedger(), None, CostKnobs(), time.monotonic),
            MatchTally(time.time),
            self.metrics,
            time.perf_counter,
            Rewriter(Speller(lambda _digest: PAYLOAD, 8)),
        )
        self.declare(normalize=True)
        self.door = RewriteDoor(self.picker, self.metrics, LIMIT, "x-team")
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def declare(self, tenants: tuple[TenantSalt, ...] = (), **fields: Any) -> None:
        prefix = RoutePrefix(
            name="p",
            tenant=TENANT,
            model=MODEL,
            fingerprint=payload_fingerprint(MODEL, PAYLOAD),
            content_digest=PAYLOAD.digest,
            **fields,
        )
        revision = Revision(term=1, number=1)
        table = RouteTable(revision=revision, prefixes=(prefix,), endpoints=(), tenants=tenants)
        self.picker.use(Routes.from_table(table, TENANT))

    async def hand_over(self, body: bytes, **headers: str) -> Any:
        """Send the head and the body of a request as Envoy does; return the last answer."""
        call = self.channel.stream_stream(f"/{SERVICE}/Process")()
        pairs = {":path": f"{CHAT}?a=b", **headers}
        sent = [{"key": key, "raw_value": value.encode()} for key, value in pairs.items()]
        await call.write(
            ProcessingRequest(request_headers={"headers": {"headers": sent}}).SerializeToString()
        )
        first = ProcessingResponse.FromString(await call.read())
        assert first == ProcessingResponse(request_headers={})
        message = ProcessingRequest(request_body={"body": body, "end_of_stream": True})
        await call.write(message.SerializeToString())
        answer = ProcessingResponse.FromString(await call.read())
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return answer

    def count(self, result: str) -> float:
        name = "promptprefix_router_rewrites_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0


@pytest_asyncio.fixture
async def stand() -> AsyncIterator[Stand]:
    (port,) = free_ports(1)
    made = Stand(port)
    await made.door.start("127.0.0.1", port)
    yield made
    await made.channel.close()
    await made.door.stop(1.0)


def body(user: str = "hi", **more: Any) -> bytes:
    system = unicodedata.normalize("NFD", PAYLOAD.system)
    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return json.dumps({"model": MODEL, "messages": turns, **more}).encode()


async def test_a_body_comes_back_as_declared_with_its_length(stand: Stand) -> None:
    answer = await stand.hand_over(body(), **{"content-length": "999"})
    response = answer.request_body.response
    changed = response.body_mutation.body
    assert json.loads(changed)["messages"][0]["content"] == PAYLOAD.system
    (header,) = response.header_mutation.set_headers
    assert (header.header.key, header.append_action) == ("content-length", 2)
    assert header.header.raw_value == str(len(changed)).encode()
    assert stand.count("rewritten") == 1


async def test_a_body_without_a_length_gets_none(stand: Stand) -> None:
    response = (await stand.hand_over(body())).request_body.response
    assert response.body_mutation.body
    assert not response.header_mutation.set_headers


@pytest.mark.parametrize("odd", [b"", b"{", b"\xff"])
async def test_what_can_not_be_read_goes_on_as_it_is(stand: Stand, odd: bytes) -> None:
    assert await stand.hand_over(odd) == ProcessingResponse(request_body={})


async def test_the_route_table_may_have_changed_meanwhile(stand: Stand) -> None:
    stand.declare(normalize=False)
    assert await stand.hand_over(body()) == ProcessingResponse(request_body={})


async def test_an_obstacle_is_counted(stand: Stand) -> None:
    assert (await stand.hand_over(body())).request_body.response.body_mutation.body
    twice = body()[:-1] + b',"x":{"y":1,"y":2}}'
    assert await stand.hand_over(twice) == ProcessingResponse(request_body={})
    assert stand.count("not-strict") == 1


async def test_a_body_that_would_grow_beyond_the_limit_is_left_alone(stand: Stand) -> None:
    stand.declare(normalize=True)
    short = body().decode().replace("u\\u0308", "u\u0308").encode()
    filler = LIMIT - len(short)
    assert (await stand.hand_over(short[:-1] + b" " * (filler + 2) + b"}")) == ProcessingResponse(
        request_body={}
    )
    assert stand.count("too-long") == 1


async def test_a_message_that_is_none_ends_the_stream(stand: Stand) -> None:
    call = stand.channel.stream_stream(f"/{SERVICE}/Process")()
    await call.write(b"\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("known", [True, False], ids=["no-salt", "no-table"])
async def test_a_salt_that_only_another_worker_knows_is_never_left_out(
    stand: Stand, known: bool
) -> None:
    """The one that decided knew it, and Envoy handed the body to this one."""
    stand.declare((TenantSalt(namespace=TENANT, tenant="acme"),))
    if not known:
        stand.picker.use(Routes())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stand.hand_over(body(), **{"x-team": "acme"})
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    stand.declare((TenantSalt(namespace=TENANT, tenant="acme", salt="salt-of-acme-0123456789"),))
    answer = await stand.hand_over(body(), **{"x-team": "acme"})
    changed = json.loads(answer.request_body.response.body_mutation.body)
    assert changed["cache_salt"] == "salt-of-acme-0123456789"
