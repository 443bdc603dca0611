"""The picker's parts on real sockets: questions, metrics, the operator and Envoy's admin."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from e2e.loopback_tls import LoopbackAuthority
from promptprefix.redial import MAX_PAUSE_S, OUTAGE, REDIALS_AT_ONCE
from promptprefix.wire import Revision, RouteEndpoint, RouteTable
from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.load_reader import LoadReader
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.control_link import Backoff, control_client
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.route_watcher import OLD_LEADER_LIMIT, RouteWatcher
from promptprefix_router.control.routes import Routes
from promptprefix_router.doors.ext_authz import ExtAuthz
from promptprefix_router.doors.http_door import open_door
from promptprefix_router.matching.matcher import Matcher
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker

ENDPOINT = RouteEndpoint(
    pod_uid="u", pod="p", namespace="ml", address="10.0.0.1", port=8000, models=("m",), ready=True
)


def route_table(number: int, term: int = 1) -> RouteTable:
    """Return a table with one endpoint."""
    revision = Revision(term=term, number=number)
    return RouteTable(revision=revision, prefixes=(), endpoints=(ENDPOINT,))


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
        operator.connect,
        token,
        "ml",
        recorder,
        recorder,
        Backoff(first_s=0.001, most_s=0.002),
        sleep,
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
    watcher = RouteWatcher(
        lambda: control_client(url, authority.ca_file), token, "ml", recorder, recorder
    )
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


def picker_parts() -> tuple[Picker, LoadLedger, RouterMetrics]:
    """Return a picker with one endpoint."""
    memo = FingerprintMemo(4)
    metrics = RouterMetrics(memo, time.monotonic)
    ledger = LoadLedger()
    chooser = Chooser(ledger, PromptHistory(100), CostKnobs(), time.monotonic)
    picker = Picker(Matcher(memo), chooser, MatchTally(time.time), metrics, time.perf_counter)
    picker.use(Routes.from_table(route_table(1), "ml"))
    return picker, ledger, metrics


@asynccontextmanager
async def served(
    handler: Callable[..., object], body_limit: int = 1024
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve ``handler`` on loopback and give a client of it."""
    server = await open_door(handler, "127.0.0.1", 0, body_limit)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client
    server.close()
    await server.wait_closed()


async def test_a_question_over_the_wire_is_answered_and_counted() -> None:
    picker, _, metrics = picker_parts()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    door = ExtAuthz(picker, 1024)
    async with served(door.answer) as decisions, served(metrics.answer) as exposition:
        response = await decisions.post("/v1/chat/completions", json=body)
        assert response.headers["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
        text = (await exposition.get("/metrics")).text
        assert 'decisions_total{match="undeclared",outcome="least-loaded"} 1.0' in text
        assert "promptprefix_router_decision_seconds_count 1.0" in text
        assert "promptprefix_router_memo_hits_total 0.0" in text
        assert (await exposition.get("/healthz")).status_code == 200
        assert (await exposition.get("/other")).status_code == 404


async def test_the_reader_fills_the_ledger() -> None:
    _, ledger, metrics = picker_parts()
    host = {
        "address": {"socket_address": {"address": "10.0.0.1", "port_value": 8000}},
        "stats": [{"name": "rq_active", "value": "4"}],
    }
    clusters = {"cluster_statuses": [{"name": "engines", "host_statuses": [host]}]}
    answers = deque([httpx.Response(200, text=json.dumps(clusters)), httpx.Response(503)])
    transport = httpx.MockTransport(lambda _request: answers.popleft())
    async with httpx.AsyncClient(transport=transport, base_url="http://envoy") as admin:
        reader = LoadReader(admin, ledger, metrics, 0.001)
        ledger.pick("10.0.0.1:8000")
        await reader.read()
        assert ledger.load("10.0.0.1:8000") == 4
        await reader.read()
        assert ledger.load("10.0.0.1:8000") == 4


async def test_an_idle_pool_is_read_again_one_interval_after_a_pick() -> None:
    _, ledger, metrics = picker_parts()
    events: list[str] = []

    def answer(_: httpx.Request) -> httpx.Response:
        events.append("read")
        return httpx.Response(200, json={"cluster_statuses": []})

    async def sleep(_: float) -> None:
        events.append("sleep")
        if len(events) == 5:
            ledger.pick("10.0.0.1:8000")
        if events.count("read") == 2:
            raise asyncio.CancelledError

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://envoy") as admin:
        with pytest.raises(asyncio.CancelledError):
            await LoadReader(admin, ledger, metrics, 0.1, sleep).run()
    assert events == ["read", "sleep", "sleep", "sleep", "sleep", "read", "sleep"]


async def test_readings_that_take_long_are_rare() -> None:
    _, ledger, metrics = picker_parts()
    ledger.pick("10.0.0.1:8000")
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        ledger.pick("10.0.0.1:8000")
        if len(pauses) == 3:
            raise asyncio.CancelledError

    times = iter((0.0, 0.001, 1.0, 1.025, 2.0, 2.5))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"cluster_statuses": []}))
    async with httpx.AsyncClient(transport=transport, base_url="http://envoy") as admin:
        reader = LoadReader(admin, ledger, metrics, 0.1, sleep, lambda: next(times))
        with pytest.raises(asyncio.CancelledError):
            await reader.run()
    assert pauses == pytest.approx([0.1, 0.5, 2.0])
