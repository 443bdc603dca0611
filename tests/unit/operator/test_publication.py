"""Revisions, sessions and what a sidecar is taken to hold."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from promptprefix.placement import Plan
from promptprefix.resource import Pinning
from promptprefix.wire import (
    EngineState,
    Phase,
    Placement,
    PlacementState,
    Revision,
    RouteEndpoint,
    SidecarState,
)
from promptprefix_operator.publication import Publication
from promptprefix_operator.sidecars import (
    MAX_SIDECARS,
    OVERTAKING_S,
    Sidecars,
    TooManySidecarsError,
)

DATE = datetime(2026, 11, 29, tzinfo=UTC)
STATE = SidecarState(engine=EngineState(healthy=True, address="a", port=1))


def placement(id_: str) -> Placement:
    return Placement(
        id=id_,
        namespace="ml",
        name="a",
        model="m",
        fingerprint="f",
        content_digest="c",
        pinning=Pinning.HARD,
    )


def planned(*endpoints: RouteEndpoint, **desired: tuple[str, ...]) -> Plan:
    sets = {uid: tuple(placement(id_) for id_ in ids) for uid, ids in desired.items()}
    return Plan(sets, (), endpoints, {}, frozenset())


def endpoint(ready: bool) -> RouteEndpoint:
    return RouteEndpoint(
        pod_uid="u", pod="p", namespace="ml", address="a", port=1, models=(), ready=ready
    )


def test_namespaces_that_nobody_could_read_are_told_apart_from_empty_ones() -> None:
    publication = Publication(5)
    publication.publish(planned(), {"b", "a"})
    assert publication.routes.unknown == ("a", "b")
    first = publication.routes.revision
    publication.publish(planned(), ["b", "a"])
    assert publication.routes.revision == first
    publication.publish(planned())
    assert publication.routes.unknown == ()
    assert publication.routes.revision.number > first.number


def test_a_revision_rises_only_with_its_content() -> None:
    publication = Publication(5)
    publication.publish(planned(endpoint(False), u0=("a",), u1=()))
    before = (publication.set_of("u0").revision, publication.set_of("u1").revision)
    routes = publication.routes.revision
    publication.publish(planned(endpoint(False), u0=("a",), u1=()))
    assert (publication.set_of("u0").revision, publication.set_of("u1").revision) == before
    assert publication.routes.revision == routes
    publication.publish(planned(endpoint(True), u0=("a", "b"), u1=()))
    assert publication.set_of("u0").revision.number > before[0].number
    assert publication.set_of("u1").revision == before[1]
    assert publication.routes.revision.number > routes.number
    assert publication.routes.revision.term == 5


def test_a_pod_that_comes_back_gets_a_revision_that_it_never_saw() -> None:
    publication = Publication(5)
    publication.publish(planned(u0=("a",)))
    seen = publication.set_of("u0").revision
    publication.publish(planned())
    assert publication.set_of("u0").revision == Revision(term=5, number=0)
    publication.publish(planned(u0=("a",)))
    assert publication.set_of("u0").revision.number > seen.number


def test_told_is_open_until_the_sidecar_has_applied_the_set_without_it() -> None:
    publication = Publication(5)
    publication.publish(planned(u0=("a",)))
    publication.publish(planned(u0=("b",)))
    assert publication.sidecar("u0", STATE, None).told == {"a", "b"}
    assert publication.sidecar("u0", STATE, publication.set_of("u0").revision).told == {"b"}
    assert publication.sidecar("unknown", STATE, None).told == frozenset()


async def test_a_publication_wakes_everybody_who_waits() -> None:
    publication = Publication(5)
    waiting = [asyncio.create_task(publication.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    publication.publish(planned())
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


class Desk:
    def __init__(self) -> None:
        self.now, self.wakes = 0.0, 0
        self.ready: set[str] = set()
        self.sidecars = Sidecars(
            lambda: self.now,
            45,
            self._wake,
            lambda: DATE,
            vouched=lambda uid: uid in self.ready,
            vouched_seconds=300,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def report(self, pod: str, state: SidecarState = STATE, number: int | None = None) -> bool:
        applied = None if number is None else Revision(term=1, number=number)
        return self.sidecars.report(pod, state, applied)


def test_only_what_plans_depend_on_is_news() -> None:
    desk = Desk()
    busy = {"blocks_free": 9, "blocks_pinned": 3, "running": 2, "waiting": 7}
    quiet = STATE.engine.model_copy(update=busy)
    held = PlacementState(id="a", phase=Phase.WARM)
    warm = STATE.model_copy(update={"placements": (held,)})
    used = STATE.model_copy(
        update={"placements": (held.model_copy(update={"last_hit": 5.0, "resident_tokens": 1}),)}
    )
    assert desk.report("u")
    assert not desk.report("u")
    assert not desk.report("u", STATE.model_copy(update={"engine": quiet}))
    assert desk.report("u", warm)
    assert not desk.report("u", used)
    assert desk.report("u", used, number=1)
    assert desk.wakes == 3


def test_a_match_of_what_was_let_go_is_news() -> None:
    desk = Desk()
    resting = PlacementState(id="a", phase=Phase.RELEASED, last_hit=5.0)
    for last_hit, news in ((5.0, True), (5.0, False), (6.0, True)):
        state = resting.model_copy(update={"last_hit": last_hit})
        assert desk.report("u", STATE.model_copy(update={"placements": (state,)})) == news


def test_a_silent_sidecar_is_disconnected_and_its_return_is_news() -> None:
    desk = Desk()
    desk.report("u")
    with desk.sidecars.polling("u"):
        desk.now = 100.0
        assert set(desk.sidecars.connected()) == {"u"}
        assert desk.sidecars.next_silence() is None
    assert desk.sidecars.next_silence() == 45.0
    desk.now = 144.9
    assert set(desk.sidecars.connected()) == {"u"}
    desk.now = 145.0
    assert desk.sidecars.connected() == {}
    assert desk.sidecars.silent() == {"u"}
    assert desk.sidecars.next_silence() is None
    assert desk.report("u")


def test_a_ready_pod_whose_sidecar_is_slow_stays_until_kubernetes_says_otherwise() -> None:
    desk = Desk()
    desk.ready = {"u"}
    desk.report("u")
    assert desk.sidecars.next_silence() == 45.0
    desk.now = 44.0
    assert not desk.sidecars.is_late(desk.sidecars.connected()["u"])
    desk.now = 200.0
    assert desk.sidecars.is_late(desk.sidecars.connected()["u"])
    assert desk.sidecars.next_silence() == 100.0
    assert desk.report("u")
    assert not desk.sidecars.is_late(desk.sidecars.connected()["u"])
    desk.now = 499.9
    assert set(desk.sidecars.connected()) == {"u"}
    desk.now = 500.0
    assert desk.sidecars.silent() == {"u"}


def test_a_pod_that_was_not_ready_meanwhile_is_not_believed_before_it_asks_again() -> None:
    desk = Desk()
    desk.ready = {"u"}
    desk.report("u")
    desk.now = 60.0
    assert set(desk.sidecars.connected()) == {"u"}
    desk.ready.clear()
    assert desk.sidecars.connected() == {}
    desk.ready = {"u"}  # its engine is back, and empty
    assert desk.sidecars.connected() == {}
    assert desk.sidecars.silent() == {"u"}
    assert desk.sidecars.next_silence() is None
    assert desk.report("u")
    desk.now = 200.0
    assert set(desk.sidecars.connected()) == {"u"}


def test_a_question_takes_the_place_of_the_one_before_and_of_none_that_came_later() -> None:
    desk = Desk()
    assert not desk.sidecars.overtaken("u", 7.0)
    desk.report("u")
    with desk.sidecars.polling("u", 7.0) as first:
        assert not desk.sidecars.overtaken("u", 8.0)
        with desk.sidecars.polling("u", 8.0) as second:
            assert (first.over, second.over) == (True, False)
            assert desk.sidecars.overtaken("u", 7.5)
            assert not desk.sidecars.overtaken("u", None)
        assert not desk.sidecars.overtaken("u", 1.0), "a node that started anew counts anew"
        with desk.sidecars.polling("u") as older:
            assert not older.over


def test_a_question_of_a_node_that_started_anew_waits_for_none_from_before() -> None:
    desk = Desk()
    desk.report("u")
    with desk.sidecars.polling("u", 86_400.0) as lost:
        assert desk.sidecars.overtaken("u", 86_400.0 - OVERTAKING_S + 1)
        assert not desk.sidecars.overtaken("u", 20.0)
        with desk.sidecars.polling("u", 20.0):
            assert lost.over
            assert desk.sidecars.overtaken("u", 19.0)


def test_sessions_are_bounded_and_silent_ones_make_room() -> None:
    desk = Desk()
    for index in range(MAX_SIDECARS):
        desk.report(f"u{index}")
    with pytest.raises(TooManySidecarsError):
        desk.report("more")
    desk.now = 45.0
    desk.report("u1")
    desk.report("more")
    assert set(desk.sidecars.connected()) == {"u1", "more"}
    desk.sidecars.forget_except({})
    assert set(desk.sidecars.connected()) == {"u1", "more"}
