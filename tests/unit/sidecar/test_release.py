"""What becomes of released prefixes, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.resource import OnIdle, Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar import desired, engine_change, evidence, lifecycle, release, settling
from promptprefix_sidecar.actions import Evict, Offload, Policy, Prepare, Touch, Unpin, Warm
from promptprefix_sidecar.clock import Moment
from promptprefix_sidecar.pins import (
    PinAnswer,
    PinReport,
    PinView,
    SeenPin,
    WatchView,
    whole_report,
)
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.snapshot import FOREVER, FoundPin, PluginStatus, Record, Snapshot

from .records import head, pin, placement, prepared, report, snapshot, warm

NOW = Moment(now=100.0, wall=1_000_000.0)
A = warm("a")
SOFT = warm("a", pinned=Pinning.SOFT)


def released(record: Record, how: OnIdle | None) -> Record:
    return replace(record, placement=record.placement.model_copy(update={"release": how}))


def watched(record: Record, resident: int, age: float | None = None) -> WatchView:
    return WatchView(
        id=record.pin_id,
        tokens=record.tokens,
        resident_tokens=resident,
        matches=int(age is not None),
        last_match_age_s=age,
    )


def modern(*pins: SeenPin, watch: tuple[WatchView, ...] = (), tier: str = "") -> PinReport:
    found = {view.id: view for view in watch}
    return replace(report(*pins, at=99.0), watched=found, offload_tier=tier)


@pytest.mark.parametrize(
    ("known", "keep", "warm_action"),
    [
        # a pin that is to be kept is given up, one that is to be evicted goes with its blocks
        (snapshot(released(A, OnIdle.KEEP), found=modern(pin(A))), Unpin(A.pin_id), None),
        (snapshot(released(A, OnIdle.EVICT), found=modern(pin(A))), Evict("a", A.pin_id), None),
        # an older plugin can't
        (snapshot(released(A, OnIdle.EVICT), found=report(pin(A), at=99.0)), Unpin(A.pin_id), None),
        # what is only soft is pinned first
        (snapshot(released(SOFT, OnIdle.EVICT), found=modern()), None, Warm("a", hard=True)),
        # what is left of an earlier pin goes as well
        (
            snapshot(released(Record(A.placement), OnIdle.EVICT), found=modern(pin(A))),
            Evict("a", A.pin_id),
            None,
        ),
        (
            snapshot(
                released(Record(A.placement), OnIdle.EVICT), found=modern(watch=(watched(A, 32),))
            ),
            Evict("a", A.pin_id),
            None,
        ),
        # a tier is asked before the pin goes; without one it just goes
        (
            snapshot(released(A, OnIdle.OFFLOAD), found=modern(pin(A, seen_at=99.0), tier="T")),
            None,
            Offload("a"),
        ),
        (snapshot(released(A, OnIdle.OFFLOAD), found=modern(pin(A))), Unpin(A.pin_id), None),
        (
            snapshot(
                released(Record(A.placement), OnIdle.OFFLOAD),
                found=modern(pin(A, seen_at=99.0), tier="T"),
            ),
            None,
            Prepare("a"),
        ),
        # nothing is warmed, touched or checked for a released prefix
        (snapshot(released(prepared("a"), OnIdle.KEEP), found=modern()), None, None),
        (
            snapshot(released(replace(SOFT, recheck_at=0.0), OnIdle.KEEP), found=modern()),
            None,
            None,
        ),
    ],
)
def test_what_is_done_with_a_released_prefix(
    known: Snapshot, keep: object, warm_action: object
) -> None:
    planned = plan(known, Policy(), NOW.now)
    assert (planned.keep, planned.touch, planned.warm) == (keep, None, warm_action)


@pytest.mark.parametrize(
    ("record", "found", "status", "how", "reason"),
    [
        (released(A, OnIdle.KEEP), modern(), None, OnIdle.KEEP, ""),
        (released(A, OnIdle.KEEP), modern(pin(A)), None, None, ""),
        (released(A, OnIdle.KEEP), None, PluginStatus.UNKNOWN, None, ""),
        (released(A, OnIdle.KEEP), None, PluginStatus.ABSENT, OnIdle.KEEP, ""),
        (released(A, OnIdle.EVICT), None, PluginStatus.ABSENT, OnIdle.KEEP, "NotEvictable"),
        (released(A, OnIdle.EVICT), report(), None, OnIdle.KEEP, "NotEvictable"),
        (released(prepared("a"), OnIdle.EVICT), modern(), None, OnIdle.EVICT, ""),
        (released(SOFT, OnIdle.EVICT), modern(), None, None, ""),
        (
            released(
                replace(SOFT, pin_reason="BudgetExceeded", pin_message="no room"), OnIdle.EVICT
            ),
            modern(),
            None,
            OnIdle.KEEP,
            "NotEvictable",
        ),
        (
            released(Record(A.placement), OnIdle.EVICT),
            modern(),
            None,
            OnIdle.KEEP,
            "NotEvictable",
        ),
        (
            released(replace(Record(A.placement), evicted=frozenset({"x"})), OnIdle.EVICT),
            modern(),
            None,
            OnIdle.EVICT,
            "",
        ),
        # an earlier text of which the engine no longer tells
        (
            released(
                replace(Record(A.placement), phase=Phase.WARM, found=FoundPin(A.pin_id, A.tokens)),
                OnIdle.EVICT,
            ),
            modern(),
            None,
            OnIdle.KEEP,
            "NotEvictable",
        ),
        (released(A, OnIdle.OFFLOAD), modern(), None, OnIdle.KEEP, "NoOffloadTier"),
        (
            released(replace(prepared("a"), evicted=frozenset({"x"})), OnIdle.OFFLOAD),
            modern(tier="T"),
            None,
            None,
            "",
        ),
        # a pin under way may yet come
        (released(replace(A, pin_attempt_at=FOREVER), OnIdle.KEEP), modern(), None, None, ""),
        (released(replace(A, pin_attempt_at=99.5), OnIdle.KEEP), modern(), None, None, ""),
    ],
)
def test_when_a_prefix_counts_as_released(
    record: Record,
    found: PinReport | None,
    status: PluginStatus | None,
    how: OnIdle | None,
    reason: str,
) -> None:
    after = settling.settle(snapshot(record, found=found, status=status)).records["a"]
    assert (after.released, after.reason) == (how, reason)
    assert (after.phase is Phase.RELEASED) is (how is not None)
    if reason:
        assert after.message or status is PluginStatus.ABSENT


def test_a_sleeping_or_unknown_engine_releases_nothing() -> None:
    known = snapshot(released(A, OnIdle.KEEP), found=modern())
    asleep = replace(known, engine=replace(known.engine, asleep=True))
    assert settling.settle(asleep).records["a"].released is None
    unknown = replace(known, boot="", engine=replace(known.engine, boot=""))
    assert settling.settle(unknown).records["a"].released is None


def test_held_again_its_tokens_are_asked_for_and_it_is_warmed() -> None:
    gone = release.done(released(A, OnIdle.EVICT), OnIdle.EVICT)
    known = desired.with_desired(snapshot(gone, found=modern()), [A.placement])
    record = known.records["a"]
    assert (record.phase, record.released, record.head) == (Phase.PENDING, None, A.head)
    assert plan(known, Policy(), NOW.now).warm == Prepare("a")


def test_held_again_before_it_was_released_it_goes_on() -> None:
    known = desired.with_desired(
        snapshot(released(A, OnIdle.EVICT), found=modern(pin(A))), [A.placement]
    )
    assert known.records["a"] == A


def test_another_end_for_what_is_already_released() -> None:
    kept = release.done(released(A, OnIdle.KEEP), OnIdle.KEEP)
    found = modern(watch=(watched(A, 32),))
    wanted = released(A, OnIdle.EVICT).placement
    known = desired.with_desired(snapshot(kept, found=found), [wanted])
    assert known.records["a"].released is None
    assert plan(known, Policy(), NOW.now).keep == Evict("a", A.pin_id)


def test_what_a_user_brought_back_is_not_evicted_again() -> None:
    gone = release.done(released(A, OnIdle.EVICT), OnIdle.EVICT)
    found = modern(watch=(watched(A, 32, age=3.0),))
    known = evidence.with_report(snapshot(gone, found=modern()), found, NOW)
    record = known.records["a"]
    assert (record.released, record.resident_tokens) == (OnIdle.EVICT, 32)
    assert record.last_hit == NOW.wall - (NOW.now - 99.0) - 3.0
    assert plan(known, Policy(), NOW.now).keep is None


def test_a_match_only_moves_forward_and_not_by_noise() -> None:
    known = snapshot(A, found=modern())
    for age, hit in ((5.0, 1_000_000 - 6.0), (5.2, 1_000_000 - 6.0), (2.0, 1_000_000 - 3.0)):
        seen = pin(A, seen_at=99.0)
        view = seen.view.model_copy(update={"last_match_age_s": age, "last_hit_age_s": 50.0})
        known = evidence.with_report(known, modern(replace(seen, view=view)), NOW)
        assert known.records["a"].last_hit == pytest.approx(hit)


def test_a_failed_step_is_tried_again_and_given_up_in_the_end() -> None:
    record = released(A, OnIdle.OFFLOAD)
    for _ in range(release.MAX_TRIES - 1):
        record = release.delayed(record, "no answer", NOW.now)
        assert record.released is None
        assert record.retry_at > NOW.now
    record = release.delayed(record, "no answer", NOW.now)
    assert (record.released, record.reason, record.message) == (
        OnIdle.KEEP,
        "NotEvictable",
        "no answer",
    )


def test_an_engine_restart_leaves_nothing_of_what_was_released() -> None:
    gone = release.done(released(A, OnIdle.EVICT), OnIdle.KEEP, "NotEvictable", "why")
    known = snapshot(gone, found=modern())
    after = engine_change.with_engine(known, replace(known.engine, boot="other")).records["a"]
    assert (after.phase, after.released, after.reason) == (Phase.RELEASED, OnIdle.EVICT, "")


@given(
    st.lists(
        st.sampled_from(
            ["hold", *OnIdle, "report", "lost", "evicted", "pinned", "absent", "restart"]
        ),
        max_size=20,
    )
)
def test_a_release_always_ends_and_never_warms(steps: list[str]) -> None:
    """Whatever happened before: asked to release, the plan leads there in a few steps."""
    known = snapshot(A, found=modern(pin(A)))
    for step in steps:
        known = _after(known, step)
    known = desired.with_desired(known, [released(A, OnIdle.EVICT).placement])
    for _ in range(8):
        planned = plan(known, Policy(), NOW.now)
        assert not isinstance(planned.touch, Touch)
        match planned.warm or planned.keep:
            case Evict(record_id, pin_id):
                known = settling.change(
                    known, record_id, lambda r, pin_id=pin_id: release.evicted(r, pin_id)
                )
                known = evidence.with_report(known, modern(), NOW)
            case Warm(_, True):
                known = _after(known, "pinned")
            case Prepare() if known.records["a"].phase is Phase.RELEASED:
                known = settling.change(
                    known, "a", lambda r: lifecycle.prepared(r, head(), NOW.now, FOREVER)
                )
            case Warm() | Prepare():
                pytest.fail("a released prefix is not warmed")
            case _:
                known = _after(known, "lost")
    assert known.records["a"].phase is Phase.RELEASED


def _after(known: Snapshot, step: str) -> Snapshot:
    record = known.records["a"]
    match step:
        case "hold":
            return desired.with_desired(known, [A.placement])
        case "report" if record.head is not None:
            return evidence.with_report(known, modern(pin(A, seen_at=99.0)), NOW)
        case "lost":
            return evidence.with_report(known, modern(), NOW)
        case "evicted":
            return settling.change(known, "a", lambda r: release.evicted(r, A.pin_id))
        case "pinned" if record.head is not None:
            return evidence.with_report(known, modern(pin(A, seen_at=99.0)), NOW)
        case "absent":
            view = replace(known.plugin, status=PluginStatus.ABSENT, report=None)
            return settling.settle(replace(known, plugin=view))
        case "restart":
            boot = f"{known.boot}+"
            return engine_change.with_engine(known, replace(known.engine, boot=boot))
        case "Keep" | "Evict" | "Offload":
            return desired.with_desired(known, [released(A, OnIdle(step)).placement])
    return known


def test_a_placement_id_keeps_its_tokens_while_released() -> None:
    gone = release.done(released(A, OnIdle.EVICT), OnIdle.EVICT)
    assert (gone.head, gone.pin_id, gone.tokens) == (head(), A.pin_id, A.tokens)
    assert placement("a").release is None


@pytest.mark.parametrize(
    ("record", "asked"),
    [
        (Record(A.placement), Prepare("a")),
        (prepared("a"), None),
        (Record(A.placement.model_copy(update={"retained": True})), None),
        (Record(A.placement.model_copy(update={"model": "other"})), None),
        (Record(A.placement, wanted=False), None),
        (Record(A.placement, retry_at=FOREVER), None),
    ],
)
def test_what_is_released_is_measured_once(record: Record, asked: Prepare | None) -> None:
    resting = replace(released(record, OnIdle.KEEP), phase=Phase.RELEASED, released=OnIdle.KEEP)
    assert plan(snapshot(resting, found=modern()), Policy(), 100.0).warm == asked


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        (modern(), False),
        (modern(pin(A)), True),
        (modern(watch=(watched(A, 0),)), True),
        (modern(pin(warm("b")), watch=(watched(warm("c"), 0),)), False),
        # an older plugin ceases to count when a pin goes
        (report(pin(A)), False),
    ],
)
def test_what_was_pinned_is_counted(found: PinReport, counts: bool) -> None:
    assert found.counts("a") is counts


@pytest.mark.parametrize(
    "answer",
    [
        PinAnswer(ok=True, pins=(PinView(id=A.pin_id, released_reason="Unpinned"),)),
        PinAnswer(ok=False, reason="UnknownPin"),
    ],
)
def test_a_pin_that_just_went_is_counted_until_a_report_says_otherwise(answer: PinAnswer) -> None:
    merged = modern(pin(A)).merged(A.pin_id, answer, 100.0)
    assert (merged.pins, merged.counts("a"), merged.counts("b")) == ({}, True, False)
    assert not whole_report(PinAnswer(ok=True, watched=()), 101.0, 101.0).counts("a")
