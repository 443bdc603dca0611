"""What the planner decides, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.actions import (
    KeepAction,
    Policy,
    Prepare,
    Renew,
    Report,
    Touch,
    Unpin,
    Warm,
    WarmAction,
)
from promptprefix_sidecar.keeping import unwanted_pins
from promptprefix_sidecar.pins import SeenPin
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.snapshot import FOREVER, PluginStatus, Record, Snapshot

from .records import head, pin, placement, prepared, report, snapshot, warm

POLICY = Policy(
    lease_s=120,
    report_interval_s=10.0,
    touch_interval_s=30.0,
    digest_check_interval_s=300.0,
    soft_wait_s=30.0,
)
A, B = warm("a"), warm("b")
SOFT = warm("s", pinning=Pinning.SOFT, pinned=Pinning.SOFT, touch_at=30.0)
NEW = Record(placement("n"))
REFUSED = replace(
    prepared("r"), pin_failures=1, pin_reason="BudgetExceeded", pin_retry_at=5.0, pin_force_at=600.0
)
REFUSED_WARM = replace(
    REFUSED, phase=Phase.WARM, pinned=Pinning.SOFT, touch_at=1000.0, resident_tokens=32
)


def prioritised(seen: SeenPin, priority: int) -> SeenPin:
    return replace(seen, view=seen.view.model_copy(update={"priority": priority}))


@pytest.mark.parametrize(
    ("known", "now", "keep", "warm_action"),
    [
        # the engine comes first
        (snapshot(NEW, healthy=False), 0.0, None, None),
        (snapshot(A, found=report(pin(A)), healthy=False), 500.0, None, None),
        # nothing is warmed before the plugin is known
        (snapshot(NEW, status=PluginStatus.UNKNOWN), 0.0, Report(), None),
        (snapshot(NEW, status=PluginStatus.UNKNOWN, ask_at=2.0), 1.0, None, None),
        (snapshot(NEW, status=PluginStatus.REFUSING, ask_at=60.0), 1.0, None, Prepare("n")),
        (snapshot(status=PluginStatus.REFUSING, ask_at=60.0), 60.0, Report(), None),
        # without the plugin nothing is asked of it
        (snapshot(), 10_000.0, None, None),
        (snapshot(prepared("p")), 0.0, None, Warm("p", hard=False)),
        # missing prefixes
        (snapshot(NEW, found=report()), 0.0, None, Prepare("n")),
        (snapshot(replace(NEW, retry_at=5.0), found=report()), 4.0, None, None),
        (snapshot(prepared("p"), found=report()), 0.0, None, Warm("p", hard=True)),
        (
            snapshot(prepared("p", pinning=Pinning.SOFT), found=report()),
            0.0,
            None,
            Warm("p", hard=False),
        ),
        (
            snapshot(prepared("p", pinning=Pinning.NONE), found=report()),
            0.0,
            None,
            Warm("p", hard=False),
        ),
        (
            snapshot(prepared("low"), prepared("high", priority=5), found=report()),
            0.0,
            None,
            Warm("high", hard=True),
        ),
        # a failure of one prefix does not hold up another
        (
            snapshot(replace(prepared("p"), retry_at=9.0), prepared("q"), found=report()),
            1.0,
            None,
            Warm("q", hard=True),
        ),
        (snapshot(replace(NEW, phase=Phase.FAILED, settled=True), found=report()), 1.0, None, None),
        # users' requests go before soft warm-ups, for a while; hard ones wait in the plugin
        (snapshot(prepared("p"), waiting=1), 29.0, None, None),
        (snapshot(prepared("p"), waiting=1), 30.0, None, Warm("p", hard=False)),
        (snapshot(prepared("p"), found=report(), waiting=1), 0.0, None, Warm("p", hard=True)),
        # renewals at a third of the lease, reports in between, pins of the same time together
        (snapshot(A, found=report(pin(A), at=39.0)), 39.0, None, None),
        (snapshot(A, found=report(pin(A), at=39.0)), 40.0, Renew(((A.pin_id, 0),)), None),
        (
            snapshot(A, B, found=report(pin(A), pin(B, seen_at=0.0), at=40.0)),
            41.0,
            Renew(((A.pin_id, 0), (B.pin_id, 0))),
            None,
        ),
        (snapshot(A, found=report(pin(A))), 10.0, Report(), None),
        (snapshot(A, found=report(pin(A), at=39.0), ask_at=45.0), 41.0, None, None),
        (
            snapshot(A, found=report(prioritised(pin(A), 7))),
            0.0,
            Renew(((A.pin_id, 0),)),
            None,
        ),
        # pins that nobody wants
        (snapshot(A, found=report(pin(A), pin(B))), 0.0, Unpin(B.pin_id), None),
        (snapshot(found=report(pin(A)), known=False), 0.0, None, None),
        (snapshot(found=report(pin(A)), known=False), 40.0, Renew(((A.pin_id, 0),)), None),
        (
            snapshot(replace(A, wanted=False), found=report(pin(A))),
            0.0,
            Unpin(A.pin_id),
            None,
        ),
        # tokens are checked again
        (snapshot(A, found=report(pin(A, seen_at=1000.0), at=1000.0)), 1000.0, None, Prepare("a")),
        # a refused pin: warmed without, tried again when there is room, and rarely without
        (snapshot(REFUSED, found=report(pinned=9)), 0.0, None, Warm("r", hard=False)),
        (snapshot(REFUSED_WARM, found=report(pinned=9)), 5.0, None, None),
        (snapshot(REFUSED_WARM, found=report(pinned=8)), 4.0, None, None),
        (snapshot(REFUSED_WARM, found=report(pinned=8)), 5.0, None, Warm("r", hard=True)),
        (
            snapshot(REFUSED_WARM, found=report(pinned=9, at=600.0)),
            600.0,
            None,
            Warm("r", hard=True),
        ),
    ],
)
def test_plan(
    known: Snapshot, now: float, keep: KeepAction | None, warm_action: WarmAction | None
) -> None:
    planned = plan(known, POLICY, now)
    assert (planned.keep, planned.warm) == (keep, warm_action)
    assert planned.wake_at > now


@pytest.mark.parametrize(
    ("known", "now", "touch"),
    [
        # soft pins are used; later while users wait
        (snapshot(SOFT), 29.0, None),
        (snapshot(SOFT), 30.0, Touch("s")),
        (snapshot(SOFT, waiting=1), 89.0, None),
        (snapshot(SOFT, waiting=1), 90.0, Touch("s")),
        (snapshot(SOFT, healthy=False), 90.0, None),
        (snapshot(A, found=report(pin(A))), 1e6, None),
    ],
)
def test_touches(known: Snapshot, now: float, touch: Touch | None) -> None:
    assert plan(known, POLICY, now).touch == touch


@pytest.mark.parametrize(
    ("known", "now", "wake_at"),
    [
        (snapshot(NEW, healthy=False), 0.0, FOREVER),
        (snapshot(), 0.0, FOREVER),
        (snapshot(A, found=report(pin(A), at=39.0)), 39.0, 40.0),
        (snapshot(A, found=report(pin(A))), 0.0, 10.0),
        (snapshot(SOFT), 0.0, 30.0),
        (snapshot(found=report()), 0.0, 40.0),
    ],
)
def test_the_lanes_sleep_until_something_is_due(
    known: Snapshot, now: float, wake_at: float
) -> None:
    planned = plan(known, POLICY, now)
    assert planned.keep is planned.touch is planned.warm is None
    assert planned.wake_at == wake_at


def test_pins_of_a_placement_that_is_not_warm_yet_are_spared() -> None:
    older = replace(A, head=head(first=500))
    found = report(pin(A), pin(older))
    assert unwanted_pins(snapshot(Record(placement("a")), found=found)) == ()
    assert unwanted_pins(snapshot(replace(A, phase=Phase.PENDING), found=found)) == ()
    assert unwanted_pins(snapshot(A, found=found)) == (older.pin_id,)


def test_a_pin_goes_when_the_resource_no_longer_asks_for_hard_pins() -> None:
    softer = warm("a", pinning=Pinning.SOFT, pinned=Pinning.SOFT)
    assert unwanted_pins(snapshot(softer, found=report(pin(A)))) == (A.pin_id,)
