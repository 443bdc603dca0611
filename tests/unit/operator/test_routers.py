"""Which namespaces' matches are told of: every router counts by itself."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_operator.routers import (
    GONE_SECONDS,
    HEARING_SECONDS,
    LOST_SECONDS,
    MAX_ROUTERS,
    ROUTER_SECONDS,
    Routers,
)


class Desk:
    def __init__(self, seconds: float = HEARING_SECONDS) -> None:
        self.seconds = 0.0
        self.wakes = 0
        self.routers = Routers(lambda: self.seconds, self._wake)
        self.seconds = seconds

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def told(self) -> tuple[set[str], set[str]]:
        """Return the namespaces that are told of, and those that are not though they are served."""
        return set(self.routers.routed), set(self.routers.silent)


def test_a_router_is_heard_as_long_as_it_reports() -> None:
    desk = Desk()
    assert desk.told == (set(), set())
    desk.routers.hear("ml", "a")
    assert (desk.told, desk.wakes) == (({"ml"}, set()), 1)
    desk.seconds += ROUTER_SECONDS - 1
    desk.routers.hear("ml", "a")
    assert (desk.told, desk.wakes) == (({"ml"}, set()), 1)
    desk.seconds += ROUTER_SECONDS
    assert desk.told == (set(), {"ml"})
    desk.routers.hear("ml", "a")
    assert (desk.told, desk.wakes) == (({"ml"}, set()), 2)
    desk.seconds += GONE_SECONDS
    assert desk.told == (set(), set())


def test_a_silent_router_is_not_masked_by_another_of_its_namespace() -> None:
    desk = Desk()
    for each in ("a", "b"):
        desk.routers.hear("ml", each)
    desk.routers.hear("other", "c")
    for _ in range(4):
        desk.seconds += ROUTER_SECONDS / 2
        desk.routers.hear("ml", "a")
        desk.routers.hear("other", "c")
    assert desk.told == ({"other"}, {"ml"})
    assert desk.routers.late == {"ml": 1, "other": 0}
    desk.routers.hear("ml", "b")
    assert desk.told == ({"ml", "other"}, set())


def test_a_router_that_asks_for_routes_and_never_told_all_is_waited_for() -> None:
    desk = Desk()
    desk.routers.hear("ml", "a")
    desk.routers.see("ml", "mute")
    assert desk.told == ({"ml"}, set()), "it has just begun"
    for _ in range(200):
        desk.seconds += ROUTER_SECONDS / 2
        desk.routers.hear("ml", "a")
        desk.routers.see("ml", "mute")
    assert desk.told == (set(), {"ml"}), "it asks, so it is not gone"
    desk.routers.hear("ml", "mute")
    assert desk.told == ({"ml"}, set())


def test_a_router_that_only_asks_tells_of_nothing() -> None:
    desk = Desk()
    desk.routers.see("ml", "mute")
    assert (desk.told, desk.wakes) == ((set(), {"ml"}), 0)


def test_one_that_ends_is_forgotten_at_once() -> None:
    desk = Desk()
    desk.routers.hear("ml", "a")
    desk.routers.hear("ml", "b")
    desk.seconds += ROUTER_SECONDS
    desk.routers.hear("ml", "a")
    assert (desk.told, desk.wakes) == ((set(), {"ml"}), 1)
    desk.routers.leave("ml", "b")
    assert (desk.told, desk.wakes) == (({"ml"}, set()), 2)
    desk.routers.leave("ml", "a")
    assert (desk.told, len(desk.routers)) == ((set(), set()), 0)
    desk.routers.leave("ml", "a")


def test_one_that_vanished_is_forgotten_later_where_others_tell() -> None:
    desk = Desk()
    desk.routers.hear("ml", "lost")
    lost_at = desk.seconds
    while desk.seconds < lost_at + LOST_SECONDS - ROUTER_SECONDS:
        desk.seconds += ROUTER_SECONDS / 2
        desk.routers.hear("ml", "a")
    assert desk.told == (set(), {"ml"})
    desk.seconds = lost_at + LOST_SECONDS
    desk.routers.hear("ml", "a")
    assert desk.told == ({"ml"}, set())


def test_after_a_start_nothing_counts_as_told_of_until_all_had_time_to_report() -> None:
    desk = Desk(seconds=0.0)
    desk.routers.expect("rested")
    desk.routers.hear("ml", "a")
    assert desk.told == (set(), {"ml", "rested"})
    desk.seconds = HEARING_SECONDS
    assert desk.told == ({"ml"}, {"rested"})
    desk.routers.hear("rested", "b")
    assert desk.told == ({"ml", "rested"}, set())
    desk.routers.leave("rested", "b")
    desk.seconds = ROUTER_SECONDS - 1
    assert desk.told == ({"ml"}, {"rested"})
    desk.seconds = ROUTER_SECONDS
    desk.routers.hear("ml", "a")
    assert desk.told == ({"ml"}, set()), "there is no router"


def test_the_number_of_routers_is_bounded() -> None:
    desk = Desk()
    for number in range(MAX_ROUTERS + 5):
        desk.seconds += 0.001
        desk.routers.hear("ml", f"r{number}")
    assert len(desk.routers) == MAX_ROUTERS
    desk.seconds += GONE_SECONDS
    desk.routers.hear("ml", "new")
    assert len(desk.routers) == 1


Step = tuple[Literal["hear", "see", "leave"], str, float]
STEPS = st.tuples(
    st.sampled_from(["hear", "see", "leave"]), st.sampled_from("abc"), st.floats(0, 50)
)


@given(st.lists(STEPS, max_size=40))
def test_nothing_is_told_of_while_a_living_router_is_silent(steps: list[Step]) -> None:
    desk = Desk()
    told: dict[str, float] = {}
    for what, router, pause in steps:
        desk.seconds += pause
        getattr(desk.routers, what)("ml", router)
        if what == "leave":
            told.pop(router, None)
        elif what == "hear":
            told[router] = desk.seconds
        routed, silent = desk.told
        assert not routed & silent
        late = [each for each in told.values() if desk.seconds - each >= ROUTER_SECONDS]
        assert not (late and routed)
        assert told or not routed
