"""Whether a prefix is held: windows, idle time, orders of people on call, and what comes next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.demand import Demand, Evidence, demand
from promptprefix.fleet import Override, Prefix, Version
from promptprefix.reasons import Reason
from promptprefix.resource import OnIdle, PromptPrefixSpec
from promptprefix.windows import Calendar
from promptprefix.wire import MATCH_STEP_S


def at(text: str) -> datetime:
    """Return a time of the day that all cases are about."""
    return datetime.fromisoformat(f"2026-11-27T{text}").replace(tzinfo=UTC)


NOON = at("12:00")
WINDOW = {
    "name": "office",
    "schedule": "0 8 * * *",
    "duration": "10h",
    "timeZone": "UTC",
    "leadTime": "30m",
}
WINDOWS = {"windows": [WINDOW]}
TTL = {"idleTTL": "10m"}
NEXT_DAY = at("07:30") + timedelta(days=1)


def prefix(fields: dict[str, object] | None = None, **others: object) -> Prefix:
    spec = PromptPrefixSpec.model_validate(
        {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "x"}},
            "onIdle": "Evict",
        }
        | (fields or {})
    )
    version = Version("u-1", "m", "f", "c", since=at("01:00"))
    plain = Prefix("u", "ml", "a", 1, spec, version, created=at("00:30"))
    return replace(plain, **others)  # type: ignore[arg-type] # any field


def seen(text: str) -> Evidence:
    """The latest match that may have been, one step after the latest that was told."""
    return Evidence(last_matched=at(text) - timedelta(seconds=MATCH_STEP_S), visible=True)


UNSEEN, SILENT = Evidence(), Evidence(visible=True)
ASKED = Override()
UNTIL_13 = Override(until=at("13:00"))
UNTIL_20 = Override(until=at("20:00"))

RULES: list[tuple[str, Prefix, Evidence, datetime, bool, Reason]] = [
    ("always", prefix(), UNSEEN, NOON, True, Reason.HELD),
    ("unreadable spec", prefix(spec=None), UNSEEN, NOON, False, Reason.INVALID_SPEC),
    ("deleting", prefix(deleting=True), UNSEEN, NOON, False, Reason.RELEASING),
    ("suspended", prefix({"suspend": True} | WINDOWS), UNSEEN, NOON, False, Reason.SUSPENDED),
    (
        "suspended, whatever is ordered",
        prefix({"suspend": True}, warm_now=ASKED),
        UNSEEN,
        NOON,
        False,
        Reason.SUSPENDED,
    ),
    ("too early", prefix(WINDOWS), UNSEEN, at("07:29:59"), False, Reason.OUTSIDE_WINDOWS),
    ("in the lead time", prefix(WINDOWS), UNSEEN, at("07:30"), True, Reason.LEAD_TIME),
    ("in the window", prefix(WINDOWS), UNSEEN, at("08:00"), True, Reason.IN_WINDOW),
    ("its last second", prefix(WINDOWS), UNSEEN, at("17:59:59"), True, Reason.IN_WINDOW),
    ("at its end", prefix(WINDOWS), UNSEEN, at("18:00"), False, Reason.OUTSIDE_WINDOWS),
    ("a match without a TTL", prefix(WINDOWS), seen("17:59"), at("18:00"), False,
     Reason.OUTSIDE_WINDOWS),
    ("matched just now", prefix(WINDOWS | TTL), seen("17:59"), at("18:00"), True, Reason.IN_USE),
    ("TTL over", prefix(WINDOWS | TTL), seen("17:59"), at("18:09"), False, Reason.OUTSIDE_WINDOWS),
    ("slid on", prefix(WINDOWS | TTL), seen("18:05"), at("18:14:59"), True, Reason.IN_USE),
    ("never matched", prefix(WINDOWS | TTL), SILENT, at("18:00"), False, Reason.OUTSIDE_WINDOWS),
    ("nobody tells", prefix(WINDOWS | TTL), UNSEEN, at("18:00"), True, Reason.IN_USE),
    ("idle in a window", prefix(WINDOWS | TTL), SILENT, NOON, True, Reason.IN_WINDOW),
    ("TTL alone, matched", prefix(TTL), seen("11:51"), NOON, True, Reason.IN_USE),
    ("TTL alone, over", prefix(TTL), seen("11:50"), NOON, False, Reason.IDLE),
    ("TTL alone, just created", prefix(TTL), SILENT, at("00:39"), True, Reason.IN_USE),
    ("TTL alone, just edited", prefix(TTL), SILENT, at("01:09:59"), True, Reason.IN_USE),
    ("TTL alone, never matched", prefix(TTL), SILENT, at("01:10"), False, Reason.IDLE),
    ("TTL alone, nobody tells", prefix(TTL), UNSEEN, NOON, True, Reason.IN_USE),
    ("TTL alone, no text yet", prefix(TTL, version=None, created=None), SILENT, NOON, False,
     Reason.IDLE),
    ("warm now, outside", prefix(WINDOWS, warm_now=ASKED), UNSEEN, at("02:00"), True,
     Reason.WARM_NOW),
    ("warm now, in a window", prefix(WINDOWS, warm_now=ASKED), UNSEEN, NOON, True, Reason.WARM_NOW),
    ("warm now, idle", prefix(TTL, warm_now=ASKED), SILENT, NOON, True, Reason.WARM_NOW),
    ("warm now, over", prefix(WINDOWS, warm_now=Override(at("02:00"))), UNSEEN, at("02:00"), False,
     Reason.OUTSIDE_WINDOWS),
    ("unpinned in a window", prefix(WINDOWS, unpin=ASKED), UNSEEN, NOON, False, Reason.UNPINNED),
    ("unpinned in use", prefix(TTL, unpin=ASKED), seen("11:59"), NOON, False, Reason.UNPINNED),
    ("unpin is stronger", prefix(warm_now=ASKED, unpin=UNTIL_13), UNSEEN, NOON, False,
     Reason.UNPINNED),
    ("unpinned, over", prefix(unpin=UNTIL_13), UNSEEN, at("13:00"), True, Reason.HELD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "evidence", "now", "held", "reason"),
    [case[1:] for case in RULES],
    ids=[case[0] for case in RULES],
)
def test_rules(
    declared: Prefix, evidence: Evidence, now: datetime, held: bool, reason: Reason
) -> None:
    found = demand(declared, evidence, now, Calendar())
    assert (found.held, found.reason) == (held, reason)
    assert found.message.endswith(".")
    assert found.wake_at is None or found.wake_at > now
    assert found.next_transition is None or found.next_transition > now
    kept = declared.spec is None or declared.deleting or declared.spec.suspend
    kept = kept or reason is Reason.UNPINNED
    assert found.release is (OnIdle.KEEP if kept else OnIdle.EVICT)


TRANSITIONS: list[tuple[str, Prefix, Evidence, datetime, datetime | None, datetime | None]] = [
    ("always", prefix(), UNSEEN, NOON, None, None),
    ("suspended", prefix(WINDOWS | {"suspend": True}), UNSEEN, NOON, None, None),
    ("lead time: its window holds on", prefix(WINDOWS), UNSEEN, at("07:45"), at("18:00"),
     at("08:00")),
    ("window", prefix(WINDOWS), UNSEEN, NOON, at("18:00"), at("18:00")),
    ("outside", prefix(WINDOWS), UNSEEN, at("19:00"), NEXT_DAY, NEXT_DAY),
    ("the TTL is no transition", prefix(WINDOWS | TTL), seen("18:30"), at("18:35"), NEXT_DAY,
     at("18:40")),
    ("TTL alone", prefix(TTL), seen("11:55"), NOON, None, at("12:05")),
    ("TTL alone, over", prefix(TTL), seen("11:00"), NOON, None, None),
    ("nobody tells", prefix(TTL), UNSEEN, NOON, None, None),
    ("warm now without end", prefix(WINDOWS, warm_now=ASKED), UNSEEN, NOON, None, at("18:00")),
    ("its end in a window is none", prefix(WINDOWS, warm_now=UNTIL_13), UNSEEN, NOON, at("18:00"),
     at("13:00")),
    ("its end outside", prefix(WINDOWS, warm_now=UNTIL_20), UNSEEN, NOON, at("20:00"),
     at("18:00")),
    ("its end with a TTL", prefix(TTL, warm_now=UNTIL_20), SILENT, NOON, at("20:00"), at("20:00")),
    ("its end where it is held anyway", prefix(warm_now=UNTIL_20), UNSEEN, NOON, None,
     at("20:00")),
    ("unpinned in a window", prefix(WINDOWS, unpin=UNTIL_13), UNSEEN, NOON, at("13:00"),
     at("13:00")),
    ("unpinned past it", prefix(WINDOWS, unpin=UNTIL_20), UNSEEN, NOON, NEXT_DAY, at("18:00")),
    ("unpinned without end", prefix(WINDOWS, unpin=ASKED), UNSEEN, NOON, None, at("18:00")),
    ("unpinned, then warm", prefix(WINDOWS, unpin=UNTIL_20, warm_now=Override(at("22:00"))),
     UNSEEN, NOON, at("20:00"), at("18:00")),
    ("warm, unpinned before its end", prefix(unpin=UNTIL_20, warm_now=UNTIL_13), UNSEEN, NOON,
     at("20:00"), at("13:00")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "evidence", "now", "transition", "wake_at"),
    [case[1:] for case in TRANSITIONS],
    ids=[case[0] for case in TRANSITIONS],
)
def test_what_comes_next(
    declared: Prefix,
    evidence: Evidence,
    now: datetime,
    transition: datetime | None,
    wake_at: datetime | None,
) -> None:
    found = demand(declared, evidence, now, Calendar())
    assert (found.next_transition, found.wake_at) == (transition, wake_at)


NEVER = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("end", [NEVER, NEVER - timedelta(days=1), NOON + timedelta(days=3_654)])
@pytest.mark.parametrize("order", ["warm_now", "unpin"])
@pytest.mark.parametrize("fields", [{}, TTL, WINDOWS, WINDOWS | TTL])
def test_an_order_that_ends_too_far_ahead_has_no_end(
    fields: dict[str, object], order: str, end: datetime
) -> None:
    answers = [
        demand(prefix(fields, **{order: Override(until)}), SILENT, NOON, Calendar())
        for until in (None, end)
    ]
    endless, far = (replace(each, wake_at=None) for each in answers)
    assert far == endless
    assert far.next_transition is None
    near = end - timedelta(days=3_653)
    told = demand(prefix(fields, **{order: Override(end)}), SILENT, near, Calendar())
    assert told.message.endswith(f"until {end:%Y-%m-%dT%H:%M:%SZ}.")


def test_the_open_window_is_named_whoever_decides() -> None:
    for declared in (
        prefix(WINDOWS),
        prefix(WINDOWS, unpin=ASKED),
        prefix(WINDOWS, warm_now=ASKED),
    ):
        assert demand(declared, UNSEEN, NOON, Calendar()).window == "office"
    assert demand(prefix(WINDOWS), UNSEEN, at("07:45"), Calendar()).window == ""


MESSAGES = [
    (prefix(WINDOWS), UNSEEN, NOON,
     "In the peak window office; the windows hold it until 2026-11-27T18:00:00Z."),
    (prefix(WINDOWS), UNSEEN, at("07:45"),
     "In the lead time of the peak window office, which opens at 2026-11-27T08:00:00Z."),
    (prefix(WINDOWS), UNSEEN, at("19:00"),
     "Outside its peak windows: held again from 2026-11-28T07:30:00Z."),
    (prefix(WINDOWS | TTL), SILENT, at("19:00"),
     "Outside its peak windows: held again from 2026-11-28T07:30:00Z or at its next match."),
    (prefix(TTL), SILENT, NOON,
     "No match within spec.idleTTL (10m): held again at its next match."),
    (prefix(TTL), seen("11:59"), NOON, "Matched, edited or created within spec.idleTTL (10m)."),
    (prefix(unpin=UNTIL_13), UNSEEN, NOON,
     "Its pins are given up by the annotation promptprefix.dev/unpin until 2026-11-27T13:00:00Z."),
    (prefix(TTL, warm_now=ASKED), UNSEEN, NOON,
     "Held by the annotation promptprefix.dev/warm-now."),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "evidence", "now", "message"), MESSAGES)
def test_messages(declared: Prefix, evidence: Evidence, now: datetime, message: str) -> None:
    assert demand(declared, evidence, now, Calendar()).message == message


def test_an_idle_time_that_nobody_can_measure_says_what_is_missing() -> None:
    message = demand(prefix(TTL), UNSEEN, NOON, Calendar()).message
    assert "spec.idleTTL" in message
    assert "router" in message
    assert "plugin" in message


def test_unreadable_windows_are_named_and_nothing_is_dropped_for_them() -> None:
    bad = WINDOW | {"name": "bad", "timeZone": "Europe/Atlantis"}
    found = demand(prefix({"windows": [WINDOW, bad]}), UNSEEN, at("19:00"), Calendar())
    assert found.invalid.startswith("spec.windows[1].timeZone: Europe/Atlantis")
    assert (found.held, found.release) == (False, OnIdle.KEEP)
    alone = demand(prefix({"windows": [bad]} | TTL), seen("18:55"), at("19:00"), Calendar())
    assert (alone.held, alone.reason) == (True, Reason.IN_USE)
    assert alone.invalid.startswith("spec.windows[0].timeZone")


def constant(found: Demand) -> tuple[object, ...]:
    return found.held, found.reason, found.message, found.window, found.next_transition


TIMES = st.integers(0, 2 * 86_400).map(lambda seconds: at("00:00") + timedelta(seconds=seconds))
OVERRIDES = st.one_of(st.none(), st.just(ASKED), TIMES.map(Override))
SPECS = st.sampled_from([{}, WINDOWS, TTL, WINDOWS | TTL])
EVIDENCE = st.builds(Evidence, st.one_of(st.none(), TIMES), st.booleans())


@settings(max_examples=200)
@given(SPECS, OVERRIDES, OVERRIDES, EVIDENCE, TIMES, st.integers(0, 2 * 86_400))
def test_nothing_changes_before_it_wakes(
    fields: dict[str, object],
    warm_now: Override | None,
    unpin: Override | None,
    evidence: Evidence,
    now: datetime,
    later: int,
) -> None:
    declared = prefix(fields, warm_now=warm_now, unpin=unpin)
    calendar = Calendar()
    first = demand(declared, evidence, now, calendar)
    end = first.wake_at or now + timedelta(days=30)
    moment = min(now + timedelta(seconds=later), end - timedelta(seconds=1))
    if moment > now:
        assert constant(demand(declared, evidence, moment, calendar)) == constant(first)
    if first.next_transition is not None:
        unused = replace(declared, version=None, created=None)
        edge = first.next_transition
        before, after = (
            demand(unused, SILENT, moment, Calendar())
            for moment in (edge - timedelta(seconds=1), edge)
        )
        assert before.held is not after.held
