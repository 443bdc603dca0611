"""Writing of statuses: only what differs, told once, retried with patience."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from promptprefix.conditions import Outlook, status_of
from promptprefix.fleet import Prefix
from promptprefix.holdings import Holding
from promptprefix.reasons import Reason
from promptprefix.resource import PromptPrefixStatus, VersionStatus
from promptprefix.wire import EngineState, Phase, PlacementState
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.events import Notice, prefix_subject
from promptprefix_operator.metrics import Metrics
from promptprefix_operator.status_writer import (
    EVENT_BURST,
    EVENT_SECONDS,
    PROGRESS_SECONDS,
    WHY_BURST,
    WHY_SECONDS,
    WRITE_BURST,
    WRITE_SECONDS,
    StatusWriter,
)

NOW = datetime(2026, 11, 29, tzinfo=UTC)
BODY: dict[str, Any] = {
    "metadata": {"uid": "u", "namespace": "ml", "name": "a", "generation": 1},
    "spec": {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "v"}}},
        "content": {"inline": {"systemInstructions": "x"}},
    },
}


def status(*phases: Phase, notes: tuple[str, ...] = ()) -> PromptPrefixStatus:
    engine = EngineState(healthy=True, address="a", port=1, block_size=16)
    holdings = tuple(
        Holding(f"p{i}", PlacementState(id="i", phase=phase, tokens=16), engine)
        for i, phase in enumerate(phases)
    )
    cluster = Cluster(lambda: None)
    cluster.see_resource(BODY)
    prefix = Prefix("u", "ml", "a", 1, cluster.resources["u"].spec, notes=notes)
    return status_of(Outlook(prefix, len(holdings), holdings), NOW)


WARMING, HALF, WARM = (
    status(Phase.WARMING, Phase.WARMING),
    status(Phase.WARM, Phase.WARMING),
    status(Phase.WARM, Phase.WARM),
)


class Bench:
    """A writer between a scripted API server and a plan that the test sets."""

    def __init__(self) -> None:
        self.writes: list[Mapping[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.errors: list[ApiError] = []
        self.tries = 0
        self.looks = 0
        self.found: list[Mapping[str, Any]] = []
        self.prune: Callable[[dict[str, Any]], None] = lambda body: None
        self.wanted: PromptPrefixStatus | None = None
        self.now = 0.0
        self.cluster = Cluster(lambda: None)
        self.cluster.see_resource(BODY)
        self.metrics = Metrics()
        self._passed = asyncio.Event()
        self.waiting = asyncio.Event()
        self.writer = StatusWriter(
            api=self,  # type: ignore[arg-type]
            cluster=self.cluster,
            controller=self,  # type: ignore[arg-type]
            events=self,  # type: ignore[arg-type]
            metrics=self.metrics,
            clock=lambda: self.now,
            rewrite_seconds=30,
        )

    def status(self, uid: str) -> PromptPrefixStatus | None:
        return self.wanted if uid == "u" else None

    async def patch(
        self, path: str, body: Mapping[str, Any], kind: str, query: Mapping[str, str]
    ) -> Mapping[str, Any]:
        assert path.endswith("/namespaces/ml/promptprefixes/a/status")
        assert kind == "application/apply-patch+yaml"
        assert query == {"fieldManager": "promptprefix-operator", "force": "true"}
        assert body["metadata"]["uid"] == "u"
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(body)
        stored = {**copy.deepcopy(BODY), "status": copy.deepcopy(body["status"])}
        self.prune(stored)
        return stored

    async def get(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        assert path.endswith("/namespaces/ml/promptprefixes")
        assert query == {"fieldSelector": "metadata.name=a"}
        self.looks += 1
        return {"items": self.found}

    def post(self, notice: Notice) -> None:
        assert notice.subject == prefix_subject("ml", "a", "u")
        self.events.append((notice.type, notice.reason))

    async def passed(self) -> None:
        self.waiting.set()
        await self._passed.wait()

    async def plan(self, wanted: PromptPrefixStatus | None) -> None:
        """Publish a plan and return when the writer has nothing left to do."""
        self.wanted = wanted
        self.waiting.clear()
        self._passed.set()
        self._passed = asyncio.Event()
        await asyncio.wait_for(self.waiting.wait(), 5)

    def results(self, result: str) -> float:
        name = "promptprefix_operator_status_writes_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.writer.follow("u", made.passed))
    await asyncio.wait_for(made.waiting.wait(), 5)
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_progress_is_written_now_and_then_and_a_transition_at_once() -> None:
    async with bench() as made:
        await made.plan(WARMING)
        await made.plan(HALF)
        assert [each["status"]["warm"] for each in made.writes] == ["0/2"]
        made.now += PROGRESS_SECONDS
        await made.plan(HALF)
        assert [each["status"]["warm"] for each in made.writes] == ["0/2", "1/2"]
        await made.plan(WARM)
        assert [each["status"]["warm"] for each in made.writes] == ["0/2", "1/2", "2/2"]


async def test_what_became_of_an_order_is_written_at_once() -> None:
    async with bench() as made:
        await made.plan(WARM)
        await made.plan(status(Phase.WARM, Phase.WARM, notes=("The annotation has no effect.",)))
        messages = [each["status"]["conditions"][1]["message"] for each in made.writes]
        assert [("no effect" in each) for each in messages] == [False, True]
        opens = NOW + timedelta(hours=1)
        await made.plan(WARM.model_copy(update={"nextTransitionTime": opens}))
        assert made.writes[-1]["status"]["nextTransitionTime"] == "2026-11-29T01:00:00Z"


async def test_a_version_that_comes_or_goes_is_written_at_once() -> None:
    old, new = (
        VersionStatus(id=name, fingerprint="f", since=NOW, warmPods=2) for name in ("old", "new")
    )
    async with bench() as made:
        for versions in ([old], [new, old], [new]):
            await made.plan(WARM.model_copy(update={"versions": versions}))
        fewer = new.model_copy(update={"warmPods": 1})
        await made.plan(WARM.model_copy(update={"versions": [fewer]}))
        listed = [[each["id"] for each in body["status"]["versions"]] for body in made.writes]
        assert listed == [["old"], ["new", "old"], ["new"]]


def crowded(message: str, **changes: Any) -> PromptPrefixStatus:
    """Return the status of one that has no room."""
    ready = {"status": "False", "reason": Reason.BUDGET_EXCEEDED, "message": message, **changes}
    first, *rest = WARMING.conditions
    return WARMING.model_copy(update={"conditions": [first.model_copy(update=ready), *rest]})


async def test_who_took_the_room_is_not_written_with_each_that_is_warmed() -> None:
    def messages() -> list[str]:
        return [each["status"]["conditions"][0]["message"] for each in made.writes]

    async with bench() as made:
        for number in range(9):
            made.now += 1
            await made.plan(crowded(f"Room is taken by {number}."))
        assert messages() == [f"Room is taken by {number}." for number in range(1 + WHY_BURST)]
        made.now += WHY_SECONDS
        await made.plan(crowded("Room is taken by 9."))
        await made.plan(crowded("Room is taken by 10."))
        assert messages()[1 + WHY_BURST :] == ["Room is taken by 9."]
        await made.plan(crowded("Edited.", observedGeneration=2))
        assert messages()[-1] == "Edited."


async def test_progress_is_written_without_a_further_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptprefix_operator.status_writer.PROGRESS_SECONDS", 0.01)
    async with bench() as made:
        await made.plan(WARMING)
        await made.plan(HALF)
        made.now += 1
        async with asyncio.timeout(5):
            while len(made.writes) < 2:  # noqa: ASYNC110 - the writer waits in this very loop
                await asyncio.sleep(0)
        assert made.writes[-1]["status"]["warm"] == "1/2"


async def test_each_state_is_written_once_and_each_transition_told_once() -> None:
    async with bench() as made:
        for wanted in (None, WARMING, WARMING, WARM, WARM):
            await made.plan(wanted)
        assert [each["status"]["warm"] for each in made.writes] == ["0/2", "2/2"]
        assert made.events == [("Normal", "Warming"), ("Normal", "SoftPinned")]
        assert made.cluster.resources["u"].status == WARM


async def test_a_status_that_is_there_already_is_neither_written_nor_told() -> None:
    async with bench() as made:
        made.cluster.see_resource({**BODY, "status": WARM.model_dump(mode="json")})
        await made.plan(WARM)
        assert (made.writes, made.events) == ([], [])


async def test_trouble_is_a_warning() -> None:
    failed = PlacementState(id="i", phase=Phase.FAILED, reason="WarmFailed", message="m")
    outlook = Outlook(Prefix("u", "ml", "a", 1, None), 1, (Holding("p", failed, None),))
    async with bench() as made:
        await made.plan(status_of(outlook, NOW))
        assert made.events == [("Warning", "InvalidSpec")]


async def test_somebody_elses_writing_is_put_right_but_not_in_a_hot_loop() -> None:
    async with bench() as made:
        made.prune = lambda body: body["status"].pop("warm")
        for _ in range(5):
            await made.plan(WARM)
        assert len(made.writes) == 1
        made.now += 30
        await made.plan(WARM)
        assert len(made.writes) == 2
        assert made.events == [("Normal", "SoftPinned")]


async def test_conditions_that_nobody_keeps_are_not_written_in_a_hot_loop() -> None:
    outlook = Outlook(Prefix("u", "ml", "a", 1, None), 0, ())
    async with bench() as made:
        made.prune = lambda body: body.pop("status")
        for second in range(5):
            await made.plan(status_of(outlook, NOW + timedelta(seconds=second)))
        assert len(made.writes) == 1
        made.now += 30
        await made.plan(status_of(outlook, NOW + timedelta(seconds=30)))
        assert len(made.writes) == 2


async def test_a_failed_write_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    before = Backoff.next

    def note(backoff: Backoff) -> float:
        waits.append(before(backoff))
        return 0.0

    monkeypatch.setattr(Backoff, "next", note)
    async with bench() as made:
        made.errors = [ApiError(422, "no"), ApiError(403, "forbidden"), ApiError(409, "conflict")]
        await made.plan(WARM)
        assert len(made.writes) == 1
        assert made.events == [("Normal", "SoftPinned")]
        assert (made.results("failed"), made.results("written")) == (3, 1)
        assert waits[0] < waits[2] <= 2.0


@pytest.mark.parametrize("others", [(), ("namesake",)])
async def test_a_resource_that_is_gone_is_forgotten_at_once(others: tuple[str, ...]) -> None:
    async with bench() as made:
        made.errors = [ApiError(404, "gone")] * 10
        made.found = [{"metadata": {**BODY["metadata"], "uid": uid}} for uid in others]
        for wanted in (WARM, HALF, WARM):
            await made.plan(wanted)
        assert made.cluster.resources == {}
        assert (made.tries, made.looks, made.events) == (1, 1, [])


async def test_not_found_of_a_resource_that_is_there_is_no_deletion() -> None:
    async with bench() as made:
        made.errors = [ApiError(404, "no such subresource")]
        made.found = [BODY]
        for _ in range(3):
            await made.plan(WARM)
        assert set(made.cluster.resources) == {"u"}
        assert (made.tries, made.looks) == (1, 1)
        made.now += 30
        await made.plan(WARM)
        assert (made.tries, len(made.writes)) == (2, 1)


async def test_an_answer_does_not_bring_back_a_resource_that_went_meanwhile() -> None:
    async with bench() as made:
        made.prune = lambda _: made.cluster.forget_resource("u")
        await made.plan(WARM)
        assert len(made.writes) == 1
        assert made.cluster.resources == {}


async def test_a_prefix_that_flaps_does_not_flood_the_cluster_with_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("promptprefix_operator.status_writer.WRITE_BURST", 1_000)
    async with bench() as made:
        for _ in range(EVENT_BURST):
            await made.plan(WARMING)
            await made.plan(WARM)
        assert len(made.writes) == 2 * EVENT_BURST
        assert len(made.events) == EVENT_BURST
        made.now += EVENT_SECONDS
        await made.plan(WARMING)
        await made.plan(WARM)
        assert len(made.events) == EVENT_BURST + 1


async def test_a_prefix_that_flaps_is_not_written_at_each_pass() -> None:
    async with bench() as made:
        for _ in range(200):
            await made.plan(WARMING)
            await made.plan(WARM)
        assert len(made.writes) == WRITE_BURST
        for _ in range(200):
            made.now += 0.25
            await made.plan(WARMING)
            await made.plan(WARM)
        assert len(made.writes) == WRITE_BURST + 50 / WRITE_SECONDS
        made.now += WRITE_SECONDS
        await made.plan(WARMING)
        assert made.writes[-1]["status"]["warm"] == "0/2", "the last word is written"


async def test_a_resource_that_rested_is_written_at_once() -> None:
    async with bench() as made:
        for _ in range(WRITE_BURST):
            await made.plan(WARMING)
            await made.plan(WARM)
        made.now += WRITE_BURST * WRITE_SECONDS
        before = len(made.writes)
        await made.plan(WARMING)
        await made.plan(WARM)
        assert len(made.writes) == before + 2
