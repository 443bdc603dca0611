"""How the router follows the operator: revisions, failures, standbys and new leaders."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.redial import MAX_PAUSE_S, OUTAGE, REDIALS_AT_ONCE
from promptprefix.wire import RouteTable
from promptprefix_router.control.control_link import Backoff, ControlAccess, control_client
from promptprefix_router.control.route_watcher import OLD_LEADER_LIMIT, RouteWatcher

from .router_tables import route_table


class Recorder:
    """Takes tables and counts, and tells when a condition holds."""

    def __init__(self) -> None:
        self.tables: list[RouteTable] = []
        self.confirmations = 0
        self.results: list[str] = []
        self.accept_errors: deque[OSError] = deque()

    def accept(self, table: RouteTable) -> None:
        """Take a table."""
        if self.accept_errors:
            raise self.accept_errors.popleft()
        self.tables.append(table)

    def confirm(self) -> None:
        """Count a confirmation."""
        self.confirmations += 1

    def synced(self, result: str) -> None:
        """Remember a result."""
        self.results.append(result)


class Operator:
    """Answers from a script; when it ends, the last question hangs and `ended` is set."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = deque(answers)
        self.asked: list[httpx.Request] = []
        self.connections = 0
        self.ended = asyncio.Event()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if not self.answers:
            self.ended.set()
            await asyncio.get_running_loop().create_future()
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def connect(self) -> httpx.AsyncClient:
        """Return a client of this operator."""
        self.connections += 1
        transport = httpx.MockTransport(self._answer)
        return httpx.AsyncClient(transport=transport, base_url="https://operator")


async def follow(
    operator: Operator, recorder: Recorder, token: Path, pauses: list[float] | None = None
) -> None:
    """Run a watcher until the operator's script ends."""

    async def sleep(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)

    watcher = RouteWatcher(
        ControlAccess(operator.connect, token, Backoff(first_s=0.001, most_s=0.002), sleep),
        "ml",
        recorder,
        recorder,
    )
    task = asyncio.create_task(watcher.run())
    async with asyncio.timeout(10):
        await operator.ended.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def answer(table: RouteTable) -> httpx.Response:
    """Return the operator's answer with ``table``."""
    return httpx.Response(200, text=table.model_dump_json())


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """Return a token file."""
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


async def test_the_revision_and_the_token_go_along(token: Path) -> None:
    operator = Operator(answer(route_table(7)), httpx.Response(204))
    recorder = Recorder()
    await follow(operator, recorder, token)
    first, second, third = operator.asked
    assert first.url.path == "/v1/routes"
    assert dict(first.url.params) == {"tenant": "ml"}
    known = {"tenant": "ml", "term": "1", "number": "7"}
    assert dict(second.url.params) == dict(third.url.params) == known
    assert first.headers["authorization"] == "Bearer first"
    assert recorder.tables == [route_table(7)]
    assert recorder.confirmations == 1
    assert recorder.results == ["table", "unchanged"]


async def test_every_failure_keeps_the_state_and_is_tried_again(token: Path) -> None:
    operator = Operator(
        answer(route_table(1)),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(401),
        httpx.Response(500),
        httpx.Response(200, text="not json"),
        httpx.Response(200, json={"revision": {"term": "x"}}),
        answer(route_table(2)),
    )
    recorder = Recorder()
    await follow(operator, recorder, token)
    assert [table.revision.number for table in recorder.tables] == [1, 2]
    assert recorder.results == [
        "table",
        "unreachable",
        "unreachable",
        "refused",
        "refused",
        "invalid",
        "invalid",
        "table",
    ]
    assert operator.asked[-2].url.params["number"] == "1"
    assert operator.connections == 7


async def test_a_rotated_token_is_read_again(token: Path) -> None:
    operator = Operator(httpx.Response(401))

    def rotate() -> httpx.AsyncClient:
        if operator.connections:
            token.write_text("second")
        return Operator.connect(operator)

    operator.connect = rotate  # type: ignore[method-assign]
    await follow(operator, Recorder(), token)
    assert [r.headers["authorization"] for r in operator.asked] == ["Bearer first", "Bearer second"]


async def test_a_table_that_could_not_be_published_is_asked_for_again(token: Path) -> None:
    operator = Operator(answer(route_table(1)), answer(route_table(1)))
    recorder = Recorder()
    recorder.accept_errors.append(OSError("disk full"))
    await follow(operator, recorder, token)
    assert dict(operator.asked[1].url.params) == {"tenant": "ml"}
    assert recorder.tables == [route_table(1)]


async def test_a_missing_token_or_ca_is_waited_for(tmp_path: Path) -> None:
    operator = Operator()
    token = tmp_path / "token"

    def appear() -> httpx.AsyncClient:
        if operator.connections == 1:
            token.write_text("late")
            operator.connections += 1
            raise FileNotFoundError("ca.crt")
        return Operator.connect(operator)

    operator.connect = appear  # type: ignore[method-assign]
    recorder = Recorder()
    await follow(operator, recorder, token)
    assert recorder.results == ["unreachable", "unreachable"]
    assert operator.asked[0].headers["authorization"] == "Bearer late"


async def test_terms_that_start_anew_are_accepted_at_last(token: Path) -> None:
    old = [httpx.Response(409) for _ in range(OLD_LEADER_LIMIT)]
    operator = Operator(answer(route_table(9, term=5)), *old, answer(route_table(1)))
    recorder = Recorder()
    await follow(operator, recorder, token)
    asked = [request.url.params.get("term") for request in operator.asked]
    assert asked == [None, *["5"] * OLD_LEADER_LIMIT, None, "1"]
    assert recorder.results[1] == "old-leader"


async def test_only_old_leaders_in_a_row_start_the_terms_anew(token: Path) -> None:
    old = [httpx.Response(409) for _ in range(OLD_LEADER_LIMIT - 1)]
    operator = Operator(answer(route_table(9, term=5)), *old, httpx.Response(204), *old)
    await follow(operator, Recorder(), token)
    assert [request.url.params.get("term") for request in operator.asked[1:]] == ["5"] * (
        2 * OLD_LEADER_LIMIT
    )


async def test_a_standbys_answer_leads_to_a_new_connection_at_once(token: Path) -> None:
    operator = Operator(
        answer(route_table(1)), httpx.Response(421), httpx.Response(421), httpx.Response(204)
    )
    recorder, pauses = Recorder(), list[float]()
    await follow(operator, recorder, token, pauses)
    assert recorder.results == ["table", "unchanged"]
    assert operator.connections == 3
    assert pauses == [0.0, 0.0]
    assert operator.asked[-1].url.params["number"] == "1"


async def test_a_failure_between_standbys_begins_their_count_anew(token: Path) -> None:
    standbys = [httpx.Response(421) for _ in range(REDIALS_AT_ONCE)]
    operator = Operator(*standbys, httpx.Response(500), httpx.Response(421), httpx.Response(204))
    pauses = list[float]()
    await follow(operator, Recorder(), token, pauses)
    assert [pause > 0 for pause in pauses] == [*[False] * REDIALS_AT_ONCE, True, False]


async def test_when_nobody_leads_the_routes_stay_and_it_is_said_once(
    token: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    standbys = [httpx.Response(421) for _ in range(OUTAGE + 1)]
    operator = Operator(answer(route_table(1)), *standbys, httpx.Response(204))
    recorder, pauses = Recorder(), list[float]()
    await follow(operator, recorder, token, pauses)
    assert recorder.results == ["table", "standby", "standby", "unchanged"]
    assert pauses[:REDIALS_AT_ONCE] == [0.0] * REDIALS_AT_ONCE
    assert all(0 < pause <= MAX_PAUSE_S for pause in pauses[REDIALS_AT_ONCE:])
    log = capsys.readouterr().out + caplog.text  # wherever tests before this one sent logs
    assert log.count("no operator leads") == log.count("operator is back") == 1


@pytest.mark.parametrize("close", [True, False])
async def test_each_redial_is_a_new_tcp_connection(
    tmp_path: Path, token: Path, close: bool
) -> None:
    authority = LoopbackAuthority(tmp_path / "ca")
    peers: list[int] = []
    ended = asyncio.Event()

    async def serve(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername")[1])
        if len(peers) == 5:
            ended.set()
            await asyncio.get_running_loop().create_future()
        if len(peers) in (2, 3):
            standby = web.Response(status=421)
            if close:
                standby.force_close()
            return standby
        return web.Response(text=route_table(len(peers)).model_dump_json())

    app = web.Application()
    app.router.add_get("/v1/routes", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.server_context()).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    recorder = Recorder()
    access = ControlAccess(lambda: control_client(url, authority.ca_file), token)
    watcher = RouteWatcher(access, "ml", recorder, recorder)
    task = asyncio.create_task(watcher.run())
    try:
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await runner.cleanup()
    first, second, third, fourth, fifth = peers
    assert first == second  # kept until a standby answers on it
    assert len({second, third, fourth}) == 3
    assert fourth == fifth
    assert recorder.results == ["table", "table"]
