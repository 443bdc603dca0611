"""Time from the first sight of a version to warm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from promptprefix.fleet import Prefix, Version
from promptprefix.resource import Condition, PromptPrefixStatus, VersionStatus
from promptprefix_operator.warm_timer import WarmTimer

NOW = datetime(2026, 11, 29, tzinfo=UTC)
PREFIX = Prefix("u", "ml", "a", 1, None, Version("u-1", "m", "f", "c"))


def status(*, active: bool, warm: bool, generation: int = 1) -> PromptPrefixStatus:
    conditions = [
        Condition(
            type=kind,
            status="True" if holds else "False",
            observedGeneration=generation,
            lastTransitionTime=NOW,
            reason="R",
            message="",
        )
        for kind, holds in (("Active", active), ("Warm", warm))
    ]
    return PromptPrefixStatus(conditions=conditions)


def written(prefix: Prefix, version: str) -> Prefix:
    """Return it with a status that says that this version of it is warm."""
    listed = VersionStatus(id=version, fingerprint="f", warmPods=1, since=NOW)
    conditions = status(active=True, warm=True).conditions
    return replace(prefix, conditions=tuple(conditions), versions=(listed,))


class Bench:
    """A timer and what it has told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[float] = []
        self.timer = WarmTimer(lambda: self.now, self.told.append)

    def see(self, after: float, *, active: bool, warm: bool, prefix: Prefix = PREFIX) -> None:
        self.now += after
        found = status(active=active, warm=warm, generation=prefix.generation)
        self.timer.observe([prefix], {"u": found})


def test_a_version_is_timed_once() -> None:
    bench = Bench()
    bench.see(0, active=True, warm=False)
    bench.see(5, active=True, warm=True)
    bench.see(5, active=True, warm=False)
    bench.see(5, active=True, warm=True)
    assert bench.told == [5.0]


def test_another_version_is_timed_anew() -> None:
    bench = Bench()
    bench.see(0, active=True, warm=False)
    bench.see(5, active=True, warm=True)
    edited = replace(PREFIX, version=Version("u-2", "m", "f", "c"))
    bench.see(5, active=True, warm=False, prefix=edited)
    bench.see(7, active=True, warm=True, prefix=edited)
    assert bench.told == [5.0, 7.0]


def test_what_was_warm_at_first_sight_is_not_timed() -> None:
    bench = Bench()
    warm = written(PREFIX, "1")
    bench.see(0, active=True, warm=False, prefix=warm)
    bench.see(5, active=True, warm=True, prefix=warm)
    assert bench.told == []


def test_an_edit_of_a_config_map_is_timed_though_the_generation_stays() -> None:
    bench = Bench()
    bench.see(0, active=True, warm=True, prefix=written(PREFIX, "1"))
    edited = written(replace(PREFIX, version=Version("u-2", "m", "f", "c")), "1")
    bench.see(5, active=True, warm=False, prefix=edited)
    bench.see(7, active=True, warm=True, prefix=edited)
    assert bench.told == [7.0]


def test_an_edit_of_anything_but_the_text_is_not_timed() -> None:
    bench = Bench()
    bench.see(0, active=True, warm=True, prefix=written(PREFIX, "1"))
    bench.see(5, active=True, warm=True, prefix=written(replace(PREFIX, generation=2), "1"))
    assert bench.told == []


def test_the_wait_for_a_window_is_not_timed() -> None:
    bench = Bench()
    bench.see(0, active=False, warm=False)
    bench.see(3_600, active=True, warm=False)
    bench.see(5, active=True, warm=True)
    assert bench.told == []
