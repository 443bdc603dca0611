"""The gateway door over gRPC: streams, health, TLS, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from e2e.loopback_tls import LoopbackAuthority
from e2e.waiting import until
from promptprefix.wire import Revision, RouteEndpoint, RouteTable
from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.gateway.ext_proc_messages import ProcessingRequest, ProcessingResponse
from promptprefix_router.gateway.server import GatewayServer
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.settings import RouterSettings

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
BUFFERED, DUPLEX = 2, 4
BODY = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
ADDRESS = "10.0.0.1:8000"


class Door:
    """A served picker and a channel to it."""

    def __init__(self, server: GatewayServer, metrics: RouterMetrics, port: int) -> None:
        self.server = server
        self.metrics = metrics
        self.port = port
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def exchange(self) -> Any:
        """Begin a stream of messages."""
        method = self.channel.stream_stream(
            METHOD,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ProcessingResponse.FromString,
        )
        return method()

    def sample(self, name: str, **labels: str) -> float:
        """Return a metric."""
        value = self.metrics.registry.get_sample_value(f"promptprefix_router_{name}", labels)
        assert value is not None
        return value

    async def open(self, count: int) -> None:
        """Wait until so many exchanges are open; without any nothing is held."""

        async def reached() -> bool:
            return self.sample("gateway_open_exchanges") == count

        await until(reached, f"{count} open exchanges")
        assert count or self.sample("gateway_held_bytes") == 0


@asynccontextmanager
async def door(
    ready: bool = True, port: int = 0, patience_s: float = 10.0, **settings: object
) -> AsyncIterator[Door]:
    """Serve a picker with one endpoint on a port of loopback, a free one for 0."""
    values: dict[str, object] = {
        "tenant": "ml",
        "gateway_host": "127.0.0.1",
        "gateway_tls": "off",
        "gateway_drain_s": 0.3,
        "max_request_bytes": 4096,
        **settings,
    }
    chosen = RouterSettings.model_validate(values).model_copy(update={"gateway_port": port})
    memo, ledger = FingerprintMemo(4), LoadLedger()
    metrics = RouterMetrics(memo, time.monotonic)
    picker = Picker(
        Matcher(memo),
        Chooser(ledger, None, CostKnobs(), time.monotonic),
        MatchTally(time.time),
        metrics,
        time.perf_counter,
    )
    if ready:
        picker.use(Routes.from_table(table(), "ml"))
        metrics.confirmed()
    server = GatewayServer(chosen, picker, ledger, metrics, patience_s)
    made = Door(server, metrics, await server.start())
    health = asyncio.create_task(server.health.run())
    try:
        yield made
    finally:
        await made.channel.close()
        await server.stop()
        health.cancel()
        await asyncio.wait({health})


def table() -> RouteTable:
    """Return a table with one ready endpoint."""
    endpoint = RouteEndpoint(
        pod_uid="u",
        pod="p",
        namespace="ml",
        address="10.0.0.1",
        port=8000,
        models=("m",),
        ready=True,
    )
    return RouteTable(revision=Revision(term=1, number=1), prefixes=(), endpoints=(endpoint,))


def head(mode: int) -> Any:
    """Return the headers of a chat completion."""
    path = {"key": ":path", "raw_value": b"/v1/chat/completions"}
    return ProcessingRequest(
        request_headers={"headers": {"headers": [path]}},
        protocol_config={"request_body_mode": mode, "response_body_mode": mode},
    )


def body(content: bytes = BODY, end: bool = True) -> Any:
    """Return a piece of a body."""
    return ProcessingRequest(request_body={"body": content, "end_of_stream": end})


def destination(response: Any) -> tuple[str, str]:
    """Return what the header says, and what the metadata."""
    part = (
        response.request_headers if response.HasField("request_headers") else response.request_body
    )
    (option,) = part.response.header_mutation.set_headers
    space = response.dynamic_metadata["envoy.lb"]
    return option.header.raw_value.decode(), space["x-gateway-destination-endpoint"]


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
async def test_a_request_is_steered_in_both_modes(mode: int) -> None:
    async with door() as served:
        call = served.exchange()
        await call.write(head(mode))
        if mode == BUFFERED:
            assert not (await call.read()).request_headers.response.header_mutation.set_headers
        await call.write(body())
        assert destination(await call.read()) == (ADDRESS, ADDRESS)
        if mode == DUPLEX:
            piece = (await call.read()).request_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (BODY, True)
        await call.write(ProcessingRequest(response_headers={}))
        told = (await call.read()).response_headers.response.header_mutation.set_headers[0].header
        assert (told.key, told.raw_value) == (
            "x-promptprefix-decision",
            b"least-loaded;match=undeclared",
        )
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        await served.open(0)
        assert served.sample("gateway_exchanges_total", end="finished") == 1


async def test_a_command_is_refused_and_the_stream_ends() -> None:
    async with door() as served:
        call = served.exchange()
        await call.write(head(DUPLEX))
        await call.write(body(b'{"vllm_xargs":{"promptprefix":"x"}}'))
        refusal = (await call.read()).immediate_response
        assert refusal.status.code == 403
        assert b"engine_command_refused" in refusal.body
        assert await call.read() is grpc.aio.EOF
        await served.open(0)
        assert served.sample("gateway_exchanges_total", end="refused") == 1


async def test_gateways_that_vanish_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """In each state of an exchange, many at once, by reset and by a lost connection."""
    caplog.set_level(logging.WARNING)
    async with door() as served:
        for _ in range(5):
            calls = [served.exchange() for _ in range(8)]
            for index, call in enumerate(calls):
                await call.write(head(DUPLEX if index % 2 else BUFFERED))
                if index % 4 > 1:
                    await call.write(body(b"{", end=index % 4 == 2))
            await served.open(8)
            for call in calls:
                call.cancel()
            await served.open(0)
        lost = served.exchange()
        await lost.write(head(DUPLEX))
        await lost.write(body(b"{", end=False))

        async def held() -> bool:
            return served.sample("gateway_held_bytes") == 1

        await until(held, "the piece is held")
        await served.channel.close()
        await served.open(0)
    assert caplog.records == []


@pytest.mark.parametrize("raw", [b"\xff", b"\x22\x00"])
async def test_a_message_out_of_turn_ends_its_exchange_alone(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with door() as served:
        good = served.exchange()
        await good.write(head(BUFFERED))
        await good.read()
        bad = served.channel.stream_stream(METHOD)()
        await bad.write(raw)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await good.write(body())
        assert destination(await good.read())[0] == ADDRESS
        good.cancel()
    assert caplog.records == []


async def test_a_slow_body_is_decided_after_a_while() -> None:
    async with door(patience_s=0.05) as served:
        call = served.exchange()
        await call.write(head(DUPLEX))
        await call.write(body(BODY[:20], end=False))
        assert destination(await call.read())[0] == ADDRESS
        first = (await call.read()).request_body.response.body_mutation.streamed_response
        await call.write(body(BODY[20:]))
        second = (await call.read()).request_body.response.body_mutation.streamed_response
        assert first.body + second.body == BODY
        assert (first.end_of_stream, second.end_of_stream) == (False, True)
        call.cancel()


async def health(served: Door, name: str) -> int:
    """Ask for the health of ``name``."""
    stub = health_pb2_grpc.HealthStub(served.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return int(answer.status)


NAMES = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_follows_the_route_table() -> None:
    async with door(ready=False) as served:
        assert [await health(served, name) for name in NAMES] == [NOT_SERVING] * 3
        assert await health(served, "liveness") == SERVING
        served.metrics.confirmed()

        async def ready() -> bool:
            return [await health(served, name) for name in NAMES] == [SERVING] * 3

        await until(ready, "the door says that it is ready")
        with pytest.raises(grpc.aio.AioRpcError):
            await health(served, "other")
        await served.server.health.leave()
        assert await health(served, "readiness") == NOT_SERVING


async def test_a_stopping_picker_hands_its_exchanges_back() -> None:
    """What a gateway can finish alone ends well; what it can't is answered until the time is up."""
    async with door() as served:
        decided, waiting = served.exchange(), served.exchange()
        await decided.write(head(BUFFERED))
        await decided.read()
        await decided.write(body())
        await decided.read()
        await waiting.write(head(BUFFERED))
        await waiting.read()
        stopping = asyncio.create_task(served.server.stop())
        assert await decided.read() is grpc.aio.EOF
        assert await decided.code() == grpc.StatusCode.OK
        await waiting.write(body())
        assert destination(await waiting.read())[0] == ADDRESS
        assert await waiting.read() is grpc.aio.EOF
        assert await waiting.code() == grpc.StatusCode.OK
        await stopping
        assert served.sample("gateway_exchanges_total", end="drained") == 2


async def secure_health(door_port: int, trusted: bytes, client: tuple[bytes, bytes] | None) -> int:
    """Ask over TLS; ``client`` is the caller's own key and certificate."""
    key, chain = client or (None, None)
    credentials = grpc.ssl_channel_credentials(trusted, key, chain)
    async with grpc.aio.secure_channel(f"127.0.0.1:{door_port}", credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
        return int(answer.status)


def issue(folder: Path, name: str) -> tuple[bytes, bytes]:
    """Make a certificate in ``folder`` under the names of a TLS Secret; return key and chain."""
    authority = LoopbackAuthority(folder / name)
    key, chain = (authority.folder / "tls.key").read_bytes(), authority.ca_file.read_bytes()
    (authority.folder / "tls.crt").write_bytes(chain)
    return key, chain


async def test_a_renewed_certificate_is_used_by_new_connections(tmp_path: Path) -> None:
    _, old = issue(tmp_path, "mounted")
    async with door(gateway_tls="files", gateway_tls_dir=tmp_path / "mounted") as served:
        assert await secure_health(served.port, old, None) == SERVING
        key, new = issue(tmp_path, "renewed")
        (tmp_path / "mounted" / "tls.key").write_bytes(key)
        (tmp_path / "mounted" / "tls.crt").write_bytes(new)
        assert await secure_health(served.port, new, None) == SERVING
        # A Secret that is gone for a moment leaves the last certificate in force.
        (tmp_path / "mounted" / "tls.crt").unlink()
        assert await secure_health(served.port, new, None) == SERVING


async def test_with_mutual_tls_only_known_gateways_may_dial(tmp_path: Path) -> None:
    _, chain = issue(tmp_path, "mounted")
    gateway, stranger = issue(tmp_path, "gateway"), issue(tmp_path, "stranger")
    (tmp_path / "mounted" / "ca.crt").write_bytes(gateway[1])
    async with door(gateway_tls="mutual", gateway_tls_dir=tmp_path / "mounted") as served:
        assert await secure_health(served.port, chain, gateway) == SERVING
        for client in (stranger, None):
            with pytest.raises(grpc.aio.AioRpcError):
                await secure_health(served.port, chain, client)


async def test_the_own_certificate_encrypts() -> None:
    async with door(gateway_tls="self-signed") as served:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with door() as served:
        with pytest.raises(OSError, match="can't listen"):
            async with door(port=served.port):
                pass


async def test_a_missing_certificate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with door(gateway_tls="files", gateway_tls_dir=tmp_path):
            pass
