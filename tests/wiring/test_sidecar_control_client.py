"""The control client over real TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.payload import Payload
from promptprefix.redial import OUTAGE, redial_pause
from promptprefix.wire import (
    SYNC_PATH,
    EngineState,
    Revision,
    Salt,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_sidecar.control_client import (
    ControlClient,
    ControlError,
    ControlStatusError,
    StandbyError,
    dialling,
)
from promptprefix_sidecar.patience import Patience

QUESTION = SyncRequest(
    state=SidecarState(engine=EngineState(healthy=True, address="10.0.0.7", port=8000))
)
TEXT = Payload(systemInstructions="Be brief.")


@dataclass
class FakeOperator:
    """Answers every request with the next of ``answers``, held up while ``free`` is not set.

    ``peers`` are the client's ports: one for each connection.
    """

    answers: list[web.Response] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peername")[1])
        self.seen.append((request.path, request.headers["authorization"]))
        self.asked.set()
        answer = self.answers.pop(0)
        if request.path == SYNC_PATH:
            await self.free.wait()
        return answer


@pytest.fixture
def operator() -> FakeOperator:
    fake = FakeOperator()
    fake.free.set()
    return fake


@pytest.fixture
def authority(tmp_path: Path) -> LoopbackAuthority:
    return LoopbackAuthority(tmp_path / "ca")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t")
    return path


@contextlib.asynccontextmanager
async def serving(
    operator: FakeOperator, authority: LoopbackAuthority, port: int = 0
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", operator.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=authority.server_context())
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def connected(
    port: int,
    ca_file: Path,
    token_file: Path,
    pauses: list[float] | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[ControlClient]:
    async def sleep(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)

    client = ControlClient(
        dialling(f"https://127.0.0.1:{port}"),
        ca_file=ca_file,
        token_file=token_file,
        sleep=sleep,
        jitter=lambda: 0.0,
        patience=patience,
    )
    try:
        yield client
    finally:
        await client.reconnect()


def reply(model: SyncResponse | Payload | Salt) -> web.Response:
    return web.Response(body=model.model_dump_json().encode(), content_type="application/json")


async def test_desired_sets_and_contents_come_with_the_token_of_the_moment(
    operator: FakeOperator, tmp_path: Path
) -> None:
    authority = LoopbackAuthority(tmp_path / "ca")
    token = tmp_path / "token"
    token.write_text("first\n")
    answer = SyncResponse(revision=Revision(term=1, number=2), placements=())
    operator.answers = [reply(answer), web.Response(status=204), reply(TEXT)]
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        assert await client.sync(QUESTION) == answer
        assert await client.sync(QUESTION) is None
        token.write_text("second")
        assert await client.content(TEXT.digest) == TEXT
    assert operator.seen == [
        ("/v1/sidecar/sync", "Bearer first"),
        ("/v1/sidecar/sync", "Bearer first"),
        (f"/v1/content/{TEXT.digest}", "Bearer second"),
    ]


async def test_a_renewed_authority_is_trusted_without_a_restart(
    operator: FakeOperator, tmp_path: Path
) -> None:
    old, new = LoopbackAuthority(tmp_path / "old"), LoopbackAuthority(tmp_path / "new")
    ca_file, token = tmp_path / "ca.crt", tmp_path / "token"
    ca_file.write_bytes(old.ca_file.read_bytes())
    token.write_text("t")
    operator.answers = [web.Response(status=204), web.Response(status=204)]
    async with serving(operator, old) as port, connected(port, ca_file, token) as client:
        await client.sync(QUESTION)
    async with serving(operator, new) as port, connected(port, ca_file, token) as client:
        with pytest.raises(ControlError, match="certificate") as caught:
            await client.sync(QUESTION)
        assert caught.value.kind == "unreachable"
        ca_file.write_bytes(new.ca_file.read_bytes())
        await client.sync(QUESTION)
    assert len(operator.seen) == 2


@pytest.mark.parametrize("text", ["", "  \n", "no certificate", "-----BEGIN CERTIFICATE-----\nx"])
async def test_without_an_authority_nothing_is_trusted(tmp_path: Path, text: str) -> None:
    ca_file, token = tmp_path / "ca.crt", tmp_path / "token"
    ca_file.write_text(text)
    token.write_text("t")
    async with connected(9, ca_file, token) as client:
        with pytest.raises(ControlError, match="not a PEM certificate"):
            await client.sync(QUESTION)


@pytest.mark.parametrize("raw", [b"", b"first\nsecond", b"sec\x01ret", b"s\xc3\xa9cret", b"\xff"])
async def test_a_broken_token_is_named_and_not_quoted(tmp_path: Path, raw: bytes) -> None:
    authority = LoopbackAuthority(tmp_path / "ca")
    token = tmp_path / "token"
    token.write_bytes(raw)
    async with connected(9, authority.ca_file, token) as client:
        with pytest.raises(ControlError) as caught:
            await client.sync(QUESTION)
    assert str(caught.value) == (
        f"the token {token} must hold one line of printable ASCII without blanks"
    )


async def test_comments_beside_the_authority_may_be_in_any_language(
    operator: FakeOperator, tmp_path: Path
) -> None:
    authority = LoopbackAuthority(tmp_path / "ca")
    ca_file, token = tmp_path / "ca.crt", tmp_path / "token"
    ca_file.write_bytes("# Größe\n".encode() + b"\xff\n" + authority.ca_file.read_bytes())
    token.write_text("t")
    operator.answers = [web.Response(status=204)]
    async with serving(operator, authority) as port, connected(port, ca_file, token) as client:
        assert await client.sync(QUESTION) is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (web.Response(status=401), "http-401"),
        (web.Response(status=409), "http-409"),
        (web.Response(text="{}"), "unreadable"),
        (web.Response(text="nonsense"), "unreadable"),
    ],
)
async def test_a_bad_answer_has_a_kind(
    operator: FakeOperator,
    authority: LoopbackAuthority,
    token: Path,
    answer: web.Response,
    kind: str,
) -> None:
    operator.answers = [answer]
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        with pytest.raises(ControlError) as caught:
            await client.sync(QUESTION)
    assert caught.value.kind == kind
    assert isinstance(caught.value, ControlStatusError) is kind.startswith("http-")


async def test_content_with_another_digest_is_refused_without_being_quoted(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    operator.answers = [reply(TEXT), web.Response(text='{"systemInstructions": 4711}')]
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        for _ in range(2):
            with pytest.raises(ControlError) as caught:
                await client.content("0" * 64)
            assert "4711" not in f"{caught.value}{caught.value.__cause__}"


async def test_a_salt_comes_by_its_placement_and_is_never_quoted(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    bad = ('{"salt": {"a secret": 1}}', '{"salt": ""}')
    operator.answers = [reply(Salt(salt="a secret")), *(web.Response(text=each) for each in bad)]
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        assert await client.salt("uid-0123456789ab") == "a secret"
        for _ in bad:
            with pytest.raises(ControlError) as caught:
                await client.salt("uid-0123456789ab")
            assert "secret" not in f"{caught.value}{caught.value.__cause__}"
    assert operator.seen[0] == ("/v1/salts/uid-0123456789ab", "Bearer t")


async def test_a_missing_token_is_named(tmp_path: Path) -> None:
    authority = LoopbackAuthority(tmp_path / "ca")
    async with connected(9, authority.ca_file, tmp_path / "none") as client:
        with pytest.raises(ControlError, match=r"the token .*none can't be read"):
            await client.sync(QUESTION)


def standby(*, close: bool) -> web.Response:
    answer = web.json_response({"message": "another operator leads"}, status=421)
    if close:
        answer.force_close()
    return answer


@pytest.mark.parametrize("close", [True, False])
async def test_a_standbys_answer_leads_to_a_new_connection_at_once(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path, close: bool
) -> None:
    operator.answers = [
        web.Response(status=204),
        standby(close=close),
        standby(close=close),
        web.Response(status=204),
        web.Response(status=204),
    ]
    pauses: list[float] = []
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token, pauses) as client,
    ):
        for _ in range(3):
            assert await client.sync(QUESTION) is None
    first, *redials, last = operator.peers
    assert redials[0] == first  # the connection is kept until a standby answers on it
    assert len({first, *redials}) == 3
    assert redials[-1] == last  # and the leader's is kept again
    assert pauses == [0.0, 0.0]


async def test_a_standby_that_is_asked_for_content_does_not_end_the_long_poll(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    operator.answers = [web.Response(status=204), standby(close=False), reply(TEXT)]
    operator.free.clear()
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        poll = asyncio.create_task(client.sync(QUESTION))
        await asyncio.wait_for(operator.asked.wait(), 10)
        assert await client.content(TEXT.digest) == TEXT
        assert not poll.done()
        operator.free.set()
        assert await poll is None
    assert len(set(operator.peers)) == 3


async def test_when_nobody_leads_the_dials_become_rare_and_an_error_says_so(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    operator.answers = [
        *(standby(close=True) for _ in range(2 * OUTAGE + 1)),
        web.Response(status=204),
        standby(close=True),
        web.Response(status=204),
    ]
    pauses: list[float] = []
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token, pauses) as client,
    ):
        with pytest.raises(StandbyError) as caught:
            await client.sync(QUESTION)
        assert caught.value.kind == "standby"
        assert pauses == [redial_pause(count, 0.0) for count in range(1, OUTAGE)]
        with pytest.raises(StandbyError):
            await client.sync(QUESTION)  # still nobody: said after one dial
        with pytest.raises(StandbyError):
            await client.content(TEXT.digest)
        assert await client.sync(QUESTION) is None
        assert await client.sync(QUESTION) is None
    assert not operator.answers


async def test_an_operator_that_says_nothing_is_left_in_time(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    operator.answers = [web.Response(status=204), web.Response(status=204)]
    operator.free.clear()
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token, patience=Patience(5.0, answer_s=0.05)) as client,
    ):
        with pytest.raises(ControlError) as caught:
            await client.sync(QUESTION)
        assert caught.value.kind == "timeout"
        operator.free.set()
        assert await client.sync(QUESTION) is None
    assert len(set(operator.peers)) == 2


async def test_texts_and_reports_share_connections_and_those_that_are_left_end_in_peace(
    operator: FakeOperator, authority: LoopbackAuthority, token: Path
) -> None:
    operator.answers = [
        web.Response(status=204),
        reply(TEXT),
        reply(TEXT),
        web.Response(status=204),
        web.Response(status=204),
    ]
    operator.free.clear()
    async with (
        serving(operator, authority) as port,
        connected(port, authority.ca_file, token) as client,
    ):
        poll = asyncio.create_task(client.sync(QUESTION))
        await asyncio.wait_for(operator.asked.wait(), 10)
        for _ in range(2):
            assert await client.content(TEXT.digest) == TEXT
        later = asyncio.create_task(client.sync(QUESTION))
        while len(operator.peers) < 4:  # noqa: ASYNC110 - the fake tells no more
            await asyncio.sleep(0.01)
        assert len(set(operator.peers)) == 2
        await client.reconnect()
        operator.free.set()
        assert [await poll, await later] == [None, None], "what was asked already is not disturbed"
        assert await client.sync(QUESTION) is None
    assert len(set(operator.peers)) == 3
