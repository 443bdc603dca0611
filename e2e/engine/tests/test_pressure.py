"""An engine full of pins keeps serving, can be reset, and tells its true load."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from e2e.engine.tests.lab import SIZE, Lab, new_scheduler, tokens

PREFIX = tokens(1, 8 * SIZE + 1)


def fill(lab: Lab) -> None:
    """The whole budget of 20 blocks, in three pins."""
    assert lab.command("pin", "low", tokens(21, 8 * SIZE + 1), priority=1)["ok"]
    assert lab.command("pin", "mid", tokens(22, 8 * SIZE + 1), priority=2)["ok"]
    assert lab.command("pin", "top", tokens(23, 4 * SIZE + 1), priority=3)["ok"]
    assert lab.used_blocks() == 20


def test_a_prompt_larger_than_what_pins_leave_completes(lab: Lab) -> None:
    fill(lab)
    large = lab.add(tokens(31, 26 * SIZE))
    small = lab.add(tokens(32, 10))
    unpin = lab.send("unpin", "top")
    lab.run()
    assert {large, small, unpin} <= lab.finished
    report = lab.command("report")
    assert [pin["id"] for pin in report["pins"]] == ["mid"]
    reasons = {item["id"]: item["reason"] for item in report["released"]}
    assert reasons == {"top": "Unpinned", "low": "PressureValve"}


def test_the_largest_prompt_takes_as_many_pins_as_it_needs(lab: Lab) -> None:
    fill(lab)
    lab.ask(tokens(33, 1279))
    assert lab.table.pins == ()
    assert lab.used_blocks() == 0


def test_a_decode_that_outgrows_the_free_blocks_completes(lab: Lab) -> None:
    fill(lab)
    lab.ask(tokens(34, 19 * SIZE), max_tokens=4 * SIZE)
    assert [pin.id for pin in lab.table.pins] == ["mid", "top"]


def test_the_valve_stays_shut_while_anything_runs(lab: Lab) -> None:
    fill(lab)
    first = lab.add(tokens(35, 15 * SIZE), max_tokens=20)
    lab.step()
    second = lab.add(tokens(36, 15 * SIZE))
    lab.run()
    assert {first, second} <= lab.finished
    assert len(lab.table.pins) == 3


def test_the_valve_stays_shut_in_a_pause(lab: Lab) -> None:
    fill(lab)
    lab.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    name = lab.add(tokens(37, 30 * SIZE))
    for _ in range(4):
        lab.step()
    assert len(lab.table.pins) == 3
    lab.scheduler.set_pause_state(PauseState.UNPAUSED)
    lab.run()
    assert name in lab.finished


def test_unpin_acts_while_the_engine_is_full(lab: Lab) -> None:
    fill(lab)
    lab.add(tokens(38, 15 * SIZE), max_tokens=30)
    lab.step()
    lab.add(tokens(39, 15 * SIZE))
    lab.send("unpin", "low")
    assert [pin.id for pin in lab.table.pins] == ["mid", "top"]
    lab.run()


def test_a_reset_frees_pins_and_raises_the_pin_epoch(lab: Lab) -> None:
    fill(lab)
    assert lab.scheduler.reset_prefix_cache()
    assert lab.used_blocks() == 0
    report = lab.command("report")
    assert (report["pin_epoch"], report["pins"]) == (1, [])
    assert {item["reason"] for item in report["released"]} == {"CacheReset"}
    assert lab.cached(tokens(21, 9 * SIZE)) == 0
    assert lab.command("pin", "low", tokens(21, 8 * SIZE + 1))["pin_epoch"] == 1


def test_a_reset_under_load(lab: Lab) -> None:
    fill(lab)
    name = lab.add(tokens(40, 4 * SIZE), max_tokens=10)
    lab.step()
    assert not lab.scheduler.reset_prefix_cache()
    assert lab.scheduler.reset_prefix_cache(reset_running_requests=True)
    lab.run()
    assert name in lab.finished
    assert lab.used_blocks() == 0


def test_warm_ups_wait_behind_users_and_for_a_bounded_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("promptprefix_vllm.scheduler.time.monotonic", lambda: clock[0])
    running = lab.add(tokens(41, 30 * SIZE), max_tokens=40)
    lab.step()
    user = lab.add(tokens(42, 12 * SIZE))
    warm_up = lab.send("pin", "a", PREFIX)
    assert warm_up not in lab.scheduler.requests
    late_user = lab.add(tokens(43, 10))
    lab.step()
    assert warm_up not in lab.scheduler.requests
    assert lab.scheduler.get_num_unfinished_requests() == 4
    clock[0] += 31
    lab.step()
    assert warm_up in lab.scheduler.requests
    lab.run()
    assert {running, user, late_user, warm_up} <= lab.finished
    assert lab.answer(warm_up)["ok"]


def test_warm_ups_run_one_at_a_time(lab: Lab) -> None:
    lab.scheduler.max_num_scheduled_tokens = 2 * SIZE
    names = [
        lab.send("pin", name, tokens(seed, 8 * SIZE + 1)) for seed, name in ((2, "a"), (3, "b"))
    ]
    user = lab.add(tokens(4, 40))
    while user not in lab.finished:
        lab.step()
        assert names[1] not in lab.scheduler.requests
    while names[0] not in lab.finished:
        assert names[1] not in lab.scheduler.requests
        lab.step()
    lab.run()
    assert [pin.id for pin in lab.table.pins] == ["a", "b"]


def test_a_warm_up_that_finds_no_blocks_lets_later_users_go_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("promptprefix_vllm.scheduler.time.monotonic", lambda: clock[0])
    running = lab.add(tokens(41, 34 * SIZE), max_tokens=20)
    lab.step()
    warm_up = lab.send("pin", "a", PREFIX)
    assert warm_up in lab.scheduler.requests
    user = lab.add(tokens(42, 10))
    while user not in lab.finished:
        lab.step()
    assert running not in lab.finished
    assert warm_up not in lab.finished
    # After its deadline it waits like a user, in its turn.
    clock[0] += 31
    last = lab.add(tokens(43, 10))
    lab.step()
    assert [request.request_id for request in lab.scheduler.waiting][-1] == last
    lab.run()
    assert lab.answer(warm_up)["ok"]
    assert last in lab.finished


def test_no_pin_goes_for_a_command(lab: Lab) -> None:
    pins = {"low": tokens(21, 8 * SIZE + 1), "mid": tokens(22, 8 * SIZE + 1)}
    assert all(lab.command("pin", name, prompt)["ok"] for name, prompt in pins.items())
    refused = lab.send("warm", "", tokens(60, 24 * SIZE + 1), count=24 * SIZE)
    accepted = lab.send("pin", "big", tokens(61, 25 * SIZE), count=4 * SIZE)
    forged = lab.add(tokens(62, 25 * SIZE), extra={"promptprefix": "{}"})
    user = lab.add(tokens(63, 40))
    lab.run()
    assert {refused, accepted, forged, user} <= lab.finished
    assert lab.answer(refused)["reason"] == lab.answer(accepted)["reason"] == "BudgetExceeded"
    assert lab.answer(forged)["reason"] == "Malformed"
    assert lab.answers[user] is None
    assert [pin.id for pin in lab.table.pins] == list(pins)
    assert lab.used_blocks() == 16
    lab.check()


def test_a_user_who_comes_beside_a_command_without_room_opens_the_valve(lab: Lab) -> None:
    fill(lab)
    refused = lab.send("warm", "", tokens(60, 24 * SIZE + 1), count=24 * SIZE)
    user = lab.add(tokens(63, 24 * SIZE))
    lab.run()
    assert {refused, user} <= lab.finished
    assert lab.answers[user] is None
    assert [pin.id for pin in lab.table.pins] == ["mid", "top"]


def test_a_refused_command_waits_behind_users_as_well(lab: Lab) -> None:
    running = lab.add(tokens(41, 30 * SIZE), max_tokens=20)
    lab.step()
    user = lab.add(tokens(42, 12 * SIZE))
    forged = lab.add(tokens(43, 8 * SIZE), extra={"promptprefix": "{}"})
    genuine = lab.send("pin", "a", PREFIX)
    report = lab.send("report")
    assert {forged, genuine}.isdisjoint(lab.scheduler.requests)
    assert report in lab.scheduler.requests
    while genuine not in lab.finished:
        assert forged not in lab.scheduler.requests
        lab.step()
    lab.run()
    assert {running, user, forged, report} <= lab.finished
    assert lab.answer(forged)["reason"] == "Malformed"


def test_a_held_warm_up_runs_when_the_queue_is_empty_and_can_be_aborted(lab: Lab) -> None:
    lab.add(tokens(44, 30 * SIZE), max_tokens=5)
    lab.step()
    lab.add(tokens(45, 12 * SIZE))
    kept, dropped = lab.send("pin", "a", PREFIX), lab.send("pin", "b", tokens(2, 33))
    lab.abort(dropped)
    lab.run()
    assert lab.answer(kept)["ok"]
    assert [pin.id for pin in lab.table.pins] == ["a"]
    assert not lab.scheduler._desk.knows(dropped)


def test_all_requests_can_be_ended_at_once(lab: Lab) -> None:
    lab.add(tokens(46, 30 * SIZE), max_tokens=5)
    lab.step()
    lab.add(tokens(47, 12 * SIZE))
    lab.send("pin", "a", PREFIX)
    lab.abort(None)
    lab.run()
    assert lab.scheduler.get_num_unfinished_requests() == 0
    assert lab.table.pins == ()


def test_pins_are_not_load(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptprefix_vllm.scheduler._STATS_SECONDS", 0.0)
    fill(lab)
    lab.ask(tokens(48, 10))
    assert lab.stats.kv_cache_usage == pytest.approx(0.0)
    assert lab.scheduler.get_kv_cache_usage() == pytest.approx(0.0)
    lab.add(tokens(21, 8 * SIZE) + tokens(49, 10), max_tokens=30)
    for _ in range(4):
        lab.step()
    # Eight blocks shared with a pin and one or two of its own: those are load.
    assert 9 / 40 <= lab.stats.kv_cache_usage <= 10 / 40
    lab.run()
    assert lab.scheduler.get_kv_cache_usage() == pytest.approx(0.0)


def test_an_answer_is_merged_with_a_connectors(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"do_remote_prefill": False, "remote_block_ids": [1]}
    monkeypatch.setattr(lab.scheduler, "_connector_finished", lambda request: (False, theirs))
    plain = lab.ask(tokens(50, 40))
    command = lab.send("pin", "a", PREFIX)
    lab.run()
    assert lab.answers[plain] == theirs
    merged = lab.answers[command]
    assert merged is not None
    assert merged.pop("promptprefix")["ok"]
    assert merged == theirs


def test_a_connector_may_delay_the_freeing_of_blocks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.scheduler, "_connector_finished", lambda request: (True, None))
    name = lab.send("pin", "a", PREFIX)
    for _ in range(4):
        lab.step()
    assert lab.answer(name)["blocks_pinned"] == 8
    lab.scheduler._free_blocks(lab.scheduler.requests[name])
    assert lab.used_blocks() == 8


def unsupported(asynchronous: bool, why: str, **options: Any) -> Lab:
    lab = Lab(new_scheduler(asynchronous=asynchronous, **options), depth=2 if asynchronous else 1)
    name = lab.ask(PREFIX, extra={"promptprefix": "{}"})
    answer = lab.answer(name)
    assert (answer["ok"], answer["reason"]) == (False, "Unsupported")
    assert why in answer["message"]
    lab.press()
    assert lab.answers[lab.ask(PREFIX)] is None
    return lab


def test_without_prefix_caching(asynchronous: bool) -> None:
    def change(config: Any) -> None:
        config.cache_config.enable_prefix_caching = False

    unsupported(asynchronous, "prefix caching is off", change=change)


def test_data_parallel_is_refused(asynchronous: bool) -> None:
    def change(config: Any) -> None:
        config.parallel_config.data_parallel_size = 2

    unsupported(asynchronous, "data parallel size is above 1", change=change)


def test_without_a_key_commands_are_refused(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMPTPREFIX_KEY_FILE")
    lab = Lab(new_scheduler(asynchronous=asynchronous), depth=2 if asynchronous else 1)
    assert lab.command("pin", "a", PREFIX)["reason"] == "NoKey"
    assert lab.used_blocks() == 0
