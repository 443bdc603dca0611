"""Reports of matches: whose are taken, and when a router counts as heard."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from promptprefix.fleet import Prefix, Version, placement_id
from promptprefix.wire import (
    MAX_MATCHES,
    Match,
    MatchAnswer,
    MatchReport,
)
from promptprefix_operator.control_api import (
    MAX_BODY_BYTES,
)
from promptprefix_operator.routers import ROUTER_SECONDS
from tests.unit.operator.control_setup import NOW, TERM, Setup, serve

MATCHES = "/v1/matches"


@pytest.fixture
async def hasty() -> AsyncIterator[Setup]:
    async for setup in serve(0.02):
        yield setup


def reported(term: int, tenant: str = "ml", *, leaving: bool = False) -> str:
    match = Match(id="u-1", count=1, at=0.0)
    report = MatchReport(tenant=tenant, sent=0.0, term=term, leaving=leaving, matches=(match,))
    return report.model_dump_json()


async def test_a_router_reports_matches_and_is_heard_once_it_has_told_all(hasty: Setup) -> None:
    version = Version("u-1", "m", "f", "c")
    hasty.matches.follow([Prefix("u", "ml", "a", 1, None, version)])
    for term, routed in ((TERM - 1, set[str]()), (0, set()), (TERM, {"ml"})):
        status, text = await hasty.ask("POST", MATCHES, "router", reported(term))
        assert (status, MatchAnswer.model_validate_json(text)) == (200, MatchAnswer(term=TERM))
        assert hasty.routers.routed == routed
        assert hasty.matches.latest("u", NOW) == {"u-1": NOW}
    name = "promptprefix_operator_match_reports_total"
    read = hasty.metrics.registry.get_sample_value
    assert (read(name, {"result": "taken"}), read(name, {"result": "asked-again"})) == (1, 2)


async def test_each_router_counts_by_the_pod_of_its_token(hasty: Setup) -> None:
    async def tell(bearer: str, body: str = reported(TERM)) -> None:
        assert (await hasty.ask("POST", MATCHES, bearer, body))[0] == 200

    await tell("router")
    await tell("router-1")
    hasty.seconds += ROUTER_SECONDS
    await tell("router")
    assert (hasty.routers.routed, hasty.routers.silent) == (set(), {"ml"})
    await tell("router-1", reported(TERM - 1, leaving=True))
    assert hasty.routers.routed == set(), "it has not told this leader of all its matches"
    await tell("router-1", reported(TERM, leaving=True))
    assert hasty.routers.routed == {"ml"}
    assert len(hasty.routers) == 1


@pytest.mark.parametrize(("tenant", "seen"), [("ml", 1), ("elsewhere", 0), ("", 0)])
async def test_a_router_that_asks_for_routes_is_known(hasty: Setup, tenant: str, seen: int) -> None:
    await hasty.ask("GET", f"/v1/routes?tenant={tenant}", "router")
    assert len(hasty.routers) == seen
    await hasty.ask("GET", "/v1/routes?tenant=ml", "pod")
    assert len(hasty.routers) == seen


@pytest.mark.parametrize(
    ("bearer", "body", "status"),
    [
        ("", reported(TERM), 401),
        ("pod", reported(TERM), 403),
        ("router", reported(TERM, "elsewhere"), 403),
        ("ml-router", reported(TERM, "chat"), 403),
        ("router", "{", 400),
        ("router", '{"tenant": "ml", "sent": 0, "matches": [{"id": "secret"}]}', 400),
        ("router", "x" * (MAX_BODY_BYTES + 1), 413),
        ("broken", reported(TERM), 503),
    ],
)
async def test_reports_of_others_and_bad_ones_are_refused(
    hasty: Setup, bearer: str, body: str, status: int
) -> None:
    found, text = await hasty.ask("POST", MATCHES, bearer, body)
    assert (found, "secret" in text) == (status, False)
    assert hasty.routers.routed == frozenset()
    name = "promptprefix_operator_match_reports_total"
    assert hasty.metrics.registry.get_sample_value(name, {"result": str(status)}) == 1


async def test_a_report_as_long_as_it_may_be_fits_in_a_body() -> None:
    id_ = placement_id("0" * 36, "m", "c")
    match = Match(id=id_, count=2**53, at=1_764_448_800.123456)
    report = MatchReport(tenant="m" * 63, sent=0.0, matches=(match,) * MAX_MATCHES)
    assert len(report.model_dump_json()) < MAX_BODY_BYTES
