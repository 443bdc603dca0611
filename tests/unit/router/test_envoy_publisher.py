"""What Envoy is told at once, and what at its pace."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from promptprefix.wire import RouteEndpoint
from promptprefix_router.control.routes import Routes
from promptprefix_router.envoy.client_routes import RouteRules
from promptprefix_router.envoy.endpoints_file import EndpointsFile
from promptprefix_router.envoy.publisher import Aside, EnvoyPublisher
from promptprefix_router.envoy.routes_file import RoutesFile
from promptprefix_router.matching.matcher import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics

from .samples import DIGEST, endpoint, prefix, routes

T = TypeVar("T")
PREFIXES = (prefix(id="v"),)


@dataclass
class Stand:
    """A publisher whose pauses end when they are told to; ``events`` tells what happened."""

    folder: Path
    events: list[str] = field(default_factory=list)
    aside: Aside | None = None

    def __post_init__(self) -> None:
        """Build the parts."""
        self.rest = asyncio.Event()
        self.publisher = EnvoyPublisher(
            EndpointsFile(self.folder),
            RoutesFile(self.folder, RouteRules()),
            RouterMetrics(FingerprintMemo(1), time.monotonic),
            sleep=self._sleep,
            aside=self.aside or _inline,
        )

    async def _sleep(self, seconds: float) -> None:
        self.events.append(f"pause {seconds:g}")
        await self.rest.wait()

    async def before(self) -> None:
        """Take note that names are about to change."""
        self.events.append("before")

    def publish(self, *endpoints: RouteEndpoint) -> bool:
        """Publish a pool with one declared prefix."""
        return self.publisher.publish(routes(*endpoints, prefixes=PREFIXES))

    def resource(self, name: str) -> Any:
        """Return what a file holds."""
        return json.loads((self.folder / name).read_bytes())["resources"][0]

    @property
    def groups(self) -> dict[str, list[str]]:
        """Groups by host."""
        return {
            each["endpoint"]["address"]["socket_address"]["address"]: each.get(
                "metadata", {"filter_metadata": {"envoy.lb": {"group": []}}}
            )["filter_metadata"]["envoy.lb"]["group"]
            for each in self.resource("endpoints.json")["endpoints"][0]["lb_endpoints"]
        }

    @property
    def answering(self) -> list[list[str]]:
        """Hosts that answer for the name, best first, as the files have it."""
        (host,) = self.resource("routes.json")["virtual_hosts"]
        (matcher,) = host["matcher"]["matcher_list"]["matchers"]
        names = matcher["on_match"]["matcher"]["matcher_tree"]["exact_match_map"]["map"]
        route = names["p"]["action"]["typed_config"]["route"]
        metadata = route["metadata_match"]["filter_metadata"]["envoy.lb"]
        return [
            [host for host, groups in self.groups.items() if each["group"] in groups]
            for each in metadata["fallback_list"]
        ]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Return a publisher in an empty folder."""
    return Stand(tmp_path)


def test_the_first_table_is_told_at_once(stand: Stand) -> None:
    assert stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2))
    assert stand.answering == [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]]


def test_a_table_without_names_has_the_ordinary_routes(stand: Stand) -> None:
    stand.publisher.publish(routes(endpoint(1)))
    (host,) = stand.resource("routes.json")["virtual_hosts"]
    assert "matcher" not in host
    assert host["routes"]


@pytest.mark.parametrize("change", [{"salt": "the-salt-of-a-tenant"}, {"owner": "acme"}])
def test_a_name_that_is_for_the_picker_now_leaves_at_once(
    stand: Stand, change: dict[str, str]
) -> None:
    stand.publish(endpoint(1, warm=(DIGEST,)))
    changed = routes(endpoint(1, warm=(DIGEST,)), prefixes=(prefix(id="v", **change),))
    stand.publisher.publish(changed)
    (host,) = stand.resource("routes.json")["virtual_hosts"]
    assert "matcher" not in host


async def test_who_is_warm_is_told_at_a_pace(stand: Stand) -> None:
    stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2), endpoint(3))
    task = asyncio.create_task(stand.publisher.run(stand.before))
    try:
        assert not stand.publish(
            endpoint(1, warm=(DIGEST,)), endpoint(2, warm=(DIGEST,)), endpoint(3)
        )
        assert stand.answering[0] == ["10.0.0.1"]
        await _turns()
        assert stand.answering[0] == ["10.0.0.1", "10.0.0.2"]
        assert stand.events == ["before", "pause 0.501"]
        stand.publish(endpoint(1), endpoint(2), endpoint(3, warm=(DIGEST,)))
        await _turns()
        assert stand.answering[0] == ["10.0.0.1", "10.0.0.2"]
        stand.rest.set()
        await _turns()
        assert stand.answering[0] == ["10.0.0.3"]
    finally:
        task.cancel()


async def test_no_route_ever_names_a_group_without_pods(stand: Stand) -> None:
    """Envoy reads one file after the other: former groups stay until it has read the routes."""
    stand.publish(endpoint(1), endpoint(2))
    (former,) = stand.groups["10.0.0.1"]
    task = asyncio.create_task(stand.publisher.run(stand.before))
    try:
        stand.publish(endpoint(1), endpoint(2), endpoint(3))
        await _turns()
        assert former in stand.groups["10.0.0.1"]
        assert stand.answering == [["10.0.0.1", "10.0.0.2", "10.0.0.3"]]
        stand.rest.set()
        await _turns()
        assert former not in stand.groups["10.0.0.1"]
        assert stand.answering == [["10.0.0.1", "10.0.0.2", "10.0.0.3"]]
    finally:
        task.cancel()


async def test_a_later_picker_keeps_the_former_groups_for_a_while(stand: Stand) -> None:
    stand.publish(endpoint(1), endpoint(2))
    (former,) = stand.groups["10.0.0.1"]
    successor = Stand(stand.folder)
    successor.publish(endpoint(1), endpoint(2), endpoint(3))
    assert former in successor.groups["10.0.0.1"]


async def test_a_pod_that_comes_or_is_not_ready_is_told_at_once(stand: Stand) -> None:
    stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2))
    before = (stand.folder / "routes.json").read_bytes()
    assert stand.publish(endpoint(1, warm=(DIGEST,), ready=False), endpoint(2), endpoint(3))
    (group,) = stand.resource("endpoints.json")["endpoints"]
    assert [each["health_status"] for each in group["lb_endpoints"]] == [
        "UNHEALTHY",
        "HEALTHY",
        "HEALTHY",
    ]
    assert stand.groups["10.0.0.3"] == []
    assert (stand.folder / "routes.json").read_bytes() == before


async def test_a_name_that_no_pod_could_answer_is_told_at_once(stand: Stand) -> None:
    """Every pod was replaced: nothing waits for the pace."""
    stand.publish(endpoint(1, warm=(DIGEST,)))
    stand.publish(endpoint(2))
    assert stand.answering == [["10.0.0.2"]]


async def test_a_folder_that_can_not_be_written_is_tried_again(stand: Stand) -> None:
    stand.publish(endpoint(1), endpoint(2))
    task = asyncio.create_task(stand.publisher.run(stand.before))
    obstacle = stand.folder / ".routes.json.new"
    try:
        obstacle.mkdir()
        stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2))
        await _turns()
        assert len(stand.answering) == 1
        obstacle.rmdir()
        stand.rest.set()
        await _turns()
        assert stand.answering == [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]]
    finally:
        task.cancel()


async def test_a_table_that_comes_while_names_are_drawn_up_is_next(stand: Stand) -> None:
    stand.publish(endpoint(1), endpoint(2))

    async def newer() -> None:
        if not stand.events:
            stand.events.append("newer")
            stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2))

    stand.rest.set()
    stand.publish(endpoint(1), endpoint(2, warm=(DIGEST,)))
    task = asyncio.create_task(stand.publisher.run(newer))
    await _turns()
    task.cancel()
    assert stand.answering[0] == ["10.0.0.1"]


async def test_an_older_plan_never_follows_a_newer_one(tmp_path: Path) -> None:
    """All pods are replaced while the plan for the old ones is still drawn up."""
    drawn = asyncio.Event()

    async def slowly(function: Callable[[Routes], T], routes: Routes, /) -> T:
        draft = function(routes)
        await drawn.wait()
        return draft

    stand = Stand(tmp_path, aside=slowly)
    stand.publish(endpoint(1))
    stand.publish(endpoint(1, warm=(DIGEST,)), endpoint(2))
    task = asyncio.create_task(stand.publisher.run(stand.before))
    await _turns()
    stand.publish(endpoint(3))
    stand.publish(endpoint(3), endpoint(4))
    drawn.set()
    await _turns()
    task.cancel()
    assert stand.answering == [["10.0.0.3", "10.0.0.4"]]


async def test_the_same_table_changes_nothing(stand: Stand) -> None:
    stand.publish(endpoint(1, warm=(DIGEST,)))
    inodes = {path.name: path.stat().st_ino for path in stand.folder.iterdir()}
    successor = Stand(stand.folder)
    assert not successor.publish(endpoint(1, warm=(DIGEST,)))
    assert {path.name: path.stat().st_ino for path in stand.folder.iterdir()} == inodes


async def _inline(function: Callable[[Routes], T], routes: Routes, /) -> T:
    return function(routes)


async def _turns() -> None:
    """Let other tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)
