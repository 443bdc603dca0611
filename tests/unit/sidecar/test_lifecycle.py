"""How events change what is known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar import (
    desired,
    engine_change,
    evidence,
    lifecycle,
    plugin_status,
    settling,
)
from promptprefix_sidecar.actions import Policy, Prepare, Report, Warm
from promptprefix_sidecar.clock import Moment
from promptprefix_sidecar.lifecycle import Failure
from promptprefix_sidecar.plan import plan
from promptprefix_sidecar.snapshot import FOREVER, NEVER, EngineView, PluginStatus, Record, Snapshot

from .records import head, pin, placement, prepared, report, snapshot, warm

NOW = Moment(now=100.0, wall=1_000_000.0)
AWAY = Failure("WarmFailed", "the control API did not answer in time", passing=True)
FAILURE = Failure("WarmFailed", "no")
A = warm("a")


def test_the_desired_set_is_taken_over_in_its_order() -> None:
    known = desired.with_desired(
        snapshot(A, found=report(pin(A))), [placement("b"), placement("a")]
    )
    assert list(known.records) == ["b", "a"]
    assert known.records["a"] is not A
    assert known.records["a"].phase is Phase.WARM
    assert known.records["b"].phase is Phase.PENDING


@pytest.mark.parametrize(
    ("found", "status", "attempt", "kept"),
    [
        (report(pin(A)), None, -1.0, True),
        (report(), None, -1.0, False),
        (report(at=5.0), None, 6.0, True),  # its pin may have come after the report
        (report(at=7.0), None, 6.0, False),
        (report(at=7.0), None, FOREVER, True),  # its pin is under way
        (None, PluginStatus.UNKNOWN, -1.0, True),
        (None, PluginStatus.ABSENT, -1.0, False),
        (None, PluginStatus.REFUSING, -1.0, False),
    ],
)
def test_a_removed_placement_is_reported_until_its_pin_is_gone(
    found: object, status: PluginStatus | None, attempt: float, kept: bool
) -> None:
    known = snapshot(replace(A, pin_attempt_at=attempt), status=status)
    if found is not None:
        known = snapshot(replace(A, pin_attempt_at=attempt), found=found, status=status)  # type: ignore[arg-type]
    after = desired.with_desired(known, [])
    assert ("a" in after.records) is kept
    assert not any(record.wanted for record in after.records.values())


def test_other_content_under_the_same_id_starts_anew() -> None:
    known = desired.with_desired(snapshot(A), [placement("a", digest="other")])
    assert known.records["a"] == Record(placement("a", digest="other"))


def test_another_pinning_is_proved_again_with_the_same_tokens() -> None:
    known = desired.with_desired(snapshot(A), [placement("a", pinning=Pinning.SOFT)])
    record = known.records["a"]
    assert (record.phase, record.pinned, record.head) == (Phase.PENDING, Pinning.NONE, A.head)


def test_another_boot_has_nothing_of_what_the_last_one_held() -> None:
    gone = replace(warm("gone"), wanted=False)
    known = snapshot(replace(A, hard_evictions=3), gone, found=report(pin(A), pin(gone)))
    after = engine_change.with_engine(known, replace(known.engine, boot="other"))
    assert after.records == {"a": Record(placement("a"), hard_evictions=3)}
    assert after.plugin.status is PluginStatus.UNKNOWN
    assert after.plugin.report is None


def test_an_unhealthy_look_forgets_nothing() -> None:
    known = snapshot(A, found=report(pin(A)))
    after = engine_change.with_engine(known, replace(known.engine, healthy=False))
    assert after.records == known.records
    assert after.plugin == known.plugin


def test_a_report_of_a_sleeping_engine_says_nothing() -> None:
    known = snapshot(A, found=report(pin(A)))
    asleep = replace(known, engine=replace(known.engine, asleep=True))
    assert evidence.with_report(asleep, report(), NOW) is asleep


def test_a_report_of_another_epoch_starts_anew() -> None:
    after = evidence.with_report(snapshot(A, found=report(pin(A))), report(epoch="f"), NOW)
    assert after.records["a"] == Record(placement("a"))
    assert after.epoch == "f"


@pytest.mark.parametrize(
    ("reason", "evictions", "pin_retry_at"),
    [
        ("LeaseExpired", 1, float("-inf")),
        ("CacheReset", 1, float("-inf")),
        ("", 1, float("-inf")),
        ("Unpinned", 0, float("-inf")),
        ("PressureValve", 1, 160.0),
    ],
)
def test_a_pin_that_is_gone_is_to_be_warmed_again(
    reason: str, evictions: int, pin_retry_at: float
) -> None:
    found = replace(report(), released={A.pin_id: reason})
    record = evidence.with_report(snapshot(A, found=report(pin(A))), found, NOW).records["a"]
    assert (record.phase, record.pinned) == (Phase.PENDING, Pinning.NONE)
    assert (record.resident_tokens, record.pinned_tokens) == (0, 0)
    assert record.hard_evictions == evictions
    assert record.pin_retry_at == pin_retry_at


@pytest.mark.parametrize("short", [{"resident_tokens": 16}, {"pinned_tokens": 16}])
def test_a_pin_that_lost_blocks_is_dead(short: dict[str, int]) -> None:
    seen = pin(A)
    found = report(replace(seen, view=seen.view.model_copy(update=short)))
    record = evidence.with_report(snapshot(A, found=report(pin(A))), found, NOW).records["a"]
    assert record.phase is Phase.PENDING
    assert record.hard_evictions == 1


def test_a_pin_whose_answer_was_lost_counts_once_it_is_reported() -> None:
    soft = replace(warm("a", pinned=Pinning.SOFT), pin_failures=1, pin_reason="WarmFailed")
    record = evidence.with_report(snapshot(soft), report(pin(soft)), NOW).records["a"]
    assert (record.pinned, record.pin_failures, record.pin_reason) == (Pinning.HARD, 0, "")
    other = replace(soft, head=head(first=9))
    record = evidence.with_report(snapshot(other), report(pin(soft)), NOW).records["a"]
    assert record == other


def test_hits_are_told_in_unix_time() -> None:
    seen = pin(A, seen_at=98.0)
    seen = replace(seen, view=seen.view.model_copy(update={"last_hit_age_s": 5.0}))
    record = evidence.with_report(snapshot(A), report(seen), NOW).records["a"]
    assert record.last_hit == NOW.wall - 2.0 - 5.0


def test_pins_without_a_plugin_that_listens_are_soft() -> None:
    known = snapshot(A, warm("s", pinned=Pinning.SOFT), found=report(pin(A)))
    refusing = plugin_status.plugin_refusing(known, "why", 100.0)
    assert refusing.records["a"].pinned is Pinning.SOFT
    assert refusing.records["a"].pinned_tokens == 0
    assert refusing.records["a"].touch_at == 100.0
    assert refusing.records["s"] is known.records["s"]
    assert refusing.plugin.ask_at == 160.0


def test_the_same_tokens_change_nothing_and_others_are_warmed() -> None:
    same = lifecycle.prepared(A, head(), 100.0, 400.0)
    assert same == replace(A, recheck_at=400.0)
    other = lifecycle.prepared(A, head(first=7), 100.0, 400.0)
    assert (other.phase, other.pinned, other.head) == (Phase.PENDING, Pinning.NONE, head(first=7))


def test_a_check_that_fails_leaves_a_warm_prefix_warm() -> None:
    after = lifecycle.prepare_failed(A, FAILURE, 100.0, 400.0)
    assert after == replace(A, recheck_at=400.0)
    settled = lifecycle.prepare_failed(A, Failure("NoStaticHead", "", settled=True), 100.0, 400.0)
    assert (settled.phase, settled.head, settled.settled) == (Phase.FAILED, None, True)


def test_failures_are_tried_again_ever_more_slowly_up_to_a_minute() -> None:
    record = prepared()
    delays = []
    for _ in range(9):
        record = lifecycle.failed(record, FAILURE, 100.0)
        delays.append(record.retry_at - 100.0)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert lifecycle.backoff(10_000) == 60


def test_nobody_is_told_that_the_control_api_was_away() -> None:
    record = replace(A, phase=Phase.WARMING)
    delays = []
    for _ in range(5):
        record = lifecycle.prepare_failed(record, AWAY, 100.0, 400.0)
        assert (record.phase, record.reason, record.message) == (Phase.PENDING, "", "")
        delays.append(record.retry_at - 100.0)
    assert delays == [1, 2, 4, 8, 10]
    assert lifecycle.failed(prepared(), AWAY, 100.0).phase is Phase.PENDING


def test_a_touch_that_finds_less_than_the_head_warms_it_again() -> None:
    soft = warm("a", pinning=Pinning.SOFT, pinned=Pinning.SOFT)
    assert soft.head is not None
    assert lifecycle.touched(soft, soft.head.tokens, 100.0, 130.0) == replace(soft, touch_at=130.0)
    assert lifecycle.touched(soft, None, 100.0, 130.0) == replace(soft, touch_at=130.0)
    evicted = lifecycle.touched(soft, soft.head.tokens - 1, 100.0, 130.0)
    assert (evicted.phase, evicted.soft_evictions) == (Phase.PENDING, 1)
    assert (evicted.retry_at, evicted.waiting_since) == (NEVER, 100.0)


def test_a_model_that_comes_and_goes() -> None:
    known = snapshot(A, found=report(pin(A)))
    without = engine_change.with_engine(known, replace(known.engine, models=("other",)))
    record = without.records["a"]
    assert (record.phase, record.reason, record.settled) == (Phase.FAILED, "ModelNotServed", True)
    assert "other" in record.message
    again = engine_change.with_engine(without, known.engine)
    assert again.records["a"] == Record(placement("a"), stale=True)
    gone = evidence.with_report(again, report(at=1.0), NOW)
    assert gone.records["a"] == Record(placement("a"))


EVENTS = st.sampled_from(
    [
        "desire",
        "remove",
        "restart",
        "unhealthy",
        "healthy",
        "away",
        "report",
        "empty-report",
        "absent",
        "refusing",
        "prepared",
        "other-tokens",
        "prepare-failed",
        "settled",
        "pinned",
        "soft",
        "failed",
        "pin-refused",
        "evicted",
    ]
)


def after(event: str, known: Snapshot, now: float) -> Snapshot:
    def change(edit: object) -> Snapshot:
        return settling.change(known, "a", edit)  # type: ignore[arg-type]

    moment = Moment(now, 0.0)
    record = known.records.get("a")
    pins = [pin(record, seen_at=now)] if record is not None and record.head is not None else []
    ready = record is not None and record.head is not None
    match event:
        case "desire":
            return desired.with_desired(known, [placement("a")])
        case "remove":
            return desired.with_desired(known, [])
        case "restart":
            view = EngineView(True, f"boot-{now}", models=("m",), block_size=16, blocks_total=99)
            return engine_change.with_engine(known, view)
        case "unhealthy" | "healthy":
            view = replace(known.engine, healthy=event == "healthy", models=("m",))
            return engine_change.with_engine(known, view)
        case "report":
            return evidence.with_report(known, report(*pins, at=now), moment)
        case "empty-report":
            return evidence.with_report(known, report(at=now), moment)
        case "absent":
            return plugin_status.plugin_absent(known, "why")
        case "refusing":
            return plugin_status.plugin_refusing(known, "why", now)
        case "prepared":
            return change(lambda r: lifecycle.prepared(r, head(), now, now + 300))
        case "other-tokens":
            return change(lambda r: lifecycle.prepared(r, head(first=9), now, now + 300))
        case "prepare-failed":
            return change(lambda r: lifecycle.prepare_failed(r, FAILURE, now, now + 300))
        case "away":
            return change(lambda r: lifecycle.prepare_failed(r, AWAY, now, now + 300))
        case "settled":
            failure = Failure("NoStaticHead", "", settled=True)
            return change(lambda r: lifecycle.prepare_failed(r, failure, now, now + 300))
        case "failed":
            return change(lambda r: lifecycle.failed(r, FAILURE, now))
        case "pin-refused":
            return change(lambda r: lifecycle.pin_refused(r, FAILURE, now))
        case "pinned" if ready:
            return change(lambda r: lifecycle.warmed(r, Pinning.HARD, 1.0, FOREVER))
        case "soft" if ready:
            return change(lambda r: lifecycle.warmed(r, Pinning.SOFT, 1.0, now + 30))
        case "evicted":
            return change(lambda r: lifecycle.touched(r, 0, now, now))
    return known


@given(st.lists(EVENTS, max_size=30))
def test_warm_always_means_proved_and_a_wanted_prefix_is_never_stuck(events: list[str]) -> None:
    known = Snapshot()
    for number, event in enumerate(events):
        known = after(event, known, float(number))
        for record in known.records.values():
            if record.phase is Phase.WARM:
                assert record.head is not None
                assert record.resident_tokens == record.head.tokens
            if record.pinned is Pinning.HARD:
                assert record.phase is Phase.WARM
                assert record.pinned_tokens == record.resident_tokens
            else:
                assert record.pinned_tokens == 0
    stuck = known.engine.healthy and plan(known, Policy(), 1e9) == plan(Snapshot(), Policy(), 1e9)
    assert not (stuck and any(r.wanted and not r.settled for r in known.records.values()))


@given(st.lists(EVENTS, max_size=20))
def test_no_failure_makes_a_lane_spin(events: list[str]) -> None:
    known = Snapshot()
    for number, event in enumerate(events):
        known = after(event, known, float(number))
    now = 1000.0
    action = plan(known, Policy(), now).warm
    if isinstance(action, Prepare):
        known = after("prepare-failed", known, now)
    elif isinstance(action, Warm) and action.hard:
        known = after("pin-refused", known, now)
    elif isinstance(action, Warm):
        known = after("failed", known, now)
    if action is not None:
        assert plan(known, Policy(), now).warm != action
    keep = plan(known, Policy(), now).keep
    if isinstance(keep, Report):
        for failed in (
            plugin_status.plugin_silent(known, now),
            plugin_status.report_failed(known, "why", now, now, 120.0),
            after("refusing", known, now),
        ):
            assert not isinstance(plan(failed, Policy(), now).keep, Report)
    touch = plan(known, Policy(), now).touch
    if touch is not None:
        edit = partial(lifecycle.touched, cached_tokens=None, now=now, touch_at=now + 30.0)
        assert plan(settling.change(known, touch.id, edit), Policy(), now).touch != touch


def test_a_pin_made_while_a_report_was_under_way_is_not_lost_by_it() -> None:
    pinned = replace(A, pin_attempt_at=NOW.now - 1.0)
    known = snapshot(pinned, found=report())
    under_way = replace(report(at=NOW.now), asked_at=NOW.now - 2.0)
    after_it = replace(report(at=NOW.now), asked_at=NOW.now - 0.5)
    assert evidence.with_report(known, under_way, NOW).records["a"] == pinned
    assert evidence.with_report(known, after_it, NOW).records["a"].hard_evictions == 1


def test_a_pin_made_anew_is_not_lost_by_a_report_of_what_was_left_of_the_old_one() -> None:
    pinned = replace(A, pin_attempt_at=NOW.now - 1.0)
    known = snapshot(pinned, found=report(pin(A)))
    left = pin(A, seen_at=NOW.now)
    left = replace(left, view=left.view.model_copy(update={"resident_tokens": 16}))
    under_way = replace(report(left, at=NOW.now), asked_at=NOW.now - 2.0)
    after_it = replace(report(left, at=NOW.now), asked_at=NOW.now - 0.5)
    assert evidence.with_report(known, under_way, NOW).records["a"] == pinned
    assert evidence.with_report(known, after_it, NOW).records["a"].hard_evictions == 1


def test_a_placement_that_goes_stays_known_until_a_report_is_newer_than_its_pin() -> None:
    going = replace(A, wanted=False, pin_attempt_at=NOW.now - 1.0)
    known = snapshot(going, found=report())
    under_way = replace(report(at=NOW.now), asked_at=NOW.now - 2.0)
    after_it = replace(report(at=NOW.now), asked_at=NOW.now - 0.5)
    assert "a" in evidence.with_report(known, under_way, NOW).records
    assert "a" not in evidence.with_report(known, after_it, NOW).records
