"""Router and operator together: what nobody asks for is let go, and comes back with a request."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from promptprefix.wire import MATCHES_PATH, MatchAnswer, MatchReport, RouteTable
from promptprefix_operator import routers
from promptprefix_operator.service import Operator
from promptprefix_router.control.control_link import ControlAccess, control_client
from promptprefix_router.control.match_reporter import MatchReporter
from promptprefix_router.control.match_tally import MatchTally

from .fake_kubernetes import ApiServer
from .operator_harness import (
    OBJECT,
    PREFIXES,
    Client,
    api_server,
    condition_of,
    counted,
    polling,
    resource,
    running,
    send,
    until,
)

HURRY = 0.02
"""A router's pauses are this much shorter here."""

SILENT = 'promptprefix_operator_silent_routers{namespace="ml"}'


class Reports:
    """Remembers what came of reports."""

    def __init__(self) -> None:
        self.results: set[str] = set()

    def reported(self, result: str) -> None:
        self.results.add(result)


@asynccontextmanager
async def reporting(
    api: ApiServer, operator: Operator, folder: Path, tally: MatchTally
) -> AsyncIterator[None]:
    """Report what ``tally`` counts, as a router does."""
    secret = api.objects["v1/secrets", "system", "promptprefix-operator-tls"]
    (folder / "ca.crt").write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    (folder / "token").write_text("system/router/")
    url = f"https://127.0.0.1:{operator.ports.control}"
    reports = Reports()
    reporter = MatchReporter(
        ControlAccess(
            lambda: control_client(url, folder / "ca.crt"),
            folder / "token",
            sleep=lambda seconds: asyncio.sleep(seconds * HURRY),
        ),
        "ml",
        tally,
        reports,
        time.time,
        lambda: time.monotonic() / HURRY,
    )
    task = asyncio.create_task(reporter.run())
    try:
        yield
        assert not task.done(), task.exception()
        assert reports.results == {"taken"}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def routed(api: ApiServer, operator: Operator) -> tuple[str, ...]:
    """Return the ids of the versions in the route table."""
    status, text = await Client(api, operator, "system/router/").ask("GET", "/v1/routes")
    assert status == 200, text
    return tuple(each.id for each in RouteTable.model_validate_json(text).prefixes)


async def tell(api: ApiServer, operator: Operator, *, leaving: bool = False) -> None:
    """Tell once, as another router does, that it has matched nothing."""
    client = Client(api, operator, "system/router/router-1")
    ask = MatchReport(tenant="ml", sent=0.0)
    status, text = await client.ask("POST", MATCHES_PATH, ask.model_dump_json())
    term = MatchAnswer.model_validate_json(text).term
    whole = ask.model_copy(update={"term": term, "leaving": leaving})
    status, text = await client.ask("POST", MATCHES_PATH, whole.model_dump_json())
    assert status == 200, text


def active_message(api: ApiServer) -> str:
    found = api.objects[PREFIXES, "ml", "triage"].get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in found if c["type"] == "Active"), "")


@pytest.fixture(autouse=True)
def all_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "HEARING_SECONDS", 0.0)


async def test_nothing_is_let_go_while_one_of_two_routers_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "ROUTER_SECONDS", 1.0)
    tally = MatchTally(time.time)
    async with (
        api_server() as api,
        running(api) as operator,
        polling(api, operator),
        reporting(api, operator, tmp_path, tally),
    ):
        await tell(api, operator)
        while await counted(operator, SILENT) < 1:  # noqa: ASYNC110 - time has no event
            await asyncio.sleep(0.05)
        await send(api, "POST", OBJECT, resource(idleTTL="1s"))
        await until(lambda: "nobody tells" in active_message(api))
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        assert condition_of(api, "Active") == ("True", "InUse")
        await tell(api, operator, leaving=True)
        await until(lambda: condition_of(api, "Active") == ("False", "Idle"))


async def test_an_idle_prefix_is_let_go_and_comes_back_with_the_next_request(
    tmp_path: Path,
) -> None:
    tally = MatchTally(time.time)
    async with api_server() as api, running(api) as operator, polling(api, operator):
        await send(api, "POST", OBJECT, resource(idleTTL="1s"))
        await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
        assert condition_of(api, "Active") == ("True", "InUse"), "nobody tells of matches"
        ids = await routed(api, operator)
        async with reporting(api, operator, tmp_path, tally):
            await until(lambda: condition_of(api, "Active") == ("False", "Idle"))
            await until(lambda: condition_of(api, "Ready") == ("True", "Released"))
            tally.retain(ids)
            tally.note(ids)
            began = time.monotonic()
            await until(lambda: condition_of(api, "Active") == ("True", "InUse"))
            assert time.monotonic() - began < 0.9, "not at the next resync"
            await until(lambda: condition_of(api, "Ready") == ("True", "Warm"))
            [version] = api.objects[PREFIXES, "ml", "triage"]["status"]["versions"]
            assert version["lastMatched"] is not None
            assert ids == (f"11-22-{version['id']}",)
