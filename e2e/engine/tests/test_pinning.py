"""Pins on vLLM's own block pool: what survives, what is shared, what is given back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from e2e.engine.tests.lab import SIZE, Lab, tokens

PREFIX = tokens(1, 8 * SIZE + 1)


def chat(prefix: list[int], seed: int = 77) -> list[int]:
    return prefix[: (len(prefix) - 1) // SIZE * SIZE] + tokens(seed, 40)


def test_the_class_is_the_one_that_vllm_chooses(lab: Lab, asynchronous: bool) -> None:
    assert isinstance(lab.scheduler, Scheduler)
    assert isinstance(lab.scheduler, AsyncScheduler) == asynchronous


def test_a_pin_survives_three_times_the_cache(lab: Lab) -> None:
    unpinned = tokens(2, 8 * SIZE + 1)
    answer = lab.command("pin", "a", PREFIX)
    assert answer["ok"], answer
    assert answer["blocks_pinned"] == 8
    assert answer["pins"][0]["pinned_tokens"] == 8 * SIZE
    lab.ask(unpinned)
    lab.press()
    assert lab.cached(chat(PREFIX)) == 8 * SIZE
    assert lab.cached(chat(unpinned)) == 0
    answer = lab.command("unpin", "a")
    assert answer["pins"][0]["state"] == "released"
    lab.press()
    assert lab.cached(chat(PREFIX)) == 0
    assert lab.used_blocks() == 0


def test_only_the_named_blocks_are_pinned(lab: Lab) -> None:
    answer = lab.command("pin", "a", tokens(1, 11 * SIZE + 5), count=8 * SIZE)
    assert answer["blocks_pinned"] == 8
    lab.press()
    assert lab.cached(tokens(1, 11 * SIZE + 5)) == 8 * SIZE


def test_pins_share_blocks(lab: Lab) -> None:
    longer = PREFIX[: 8 * SIZE] + tokens(3, 4 * SIZE + 1)
    assert lab.command("pin", "a", PREFIX)["blocks_pinned"] == 8
    assert lab.command("pin", "b", longer)["blocks_pinned"] == 12
    assert lab.command("unpin", "b")["blocks_pinned"] == 8
    lab.press()
    assert lab.cached(chat(PREFIX)) == 8 * SIZE
    assert lab.command("unpin", "a")["blocks_pinned"] == 0
    assert lab.used_blocks() == 0


def test_a_pin_of_cached_blocks_and_again_with_the_same_id(lab: Lab) -> None:
    for _ in range(3):
        answer = lab.command("pin", "a", PREFIX)
        assert (answer["ok"], answer["blocks_pinned"]) == (True, 8)
    assert lab.used_blocks() == 8


def test_over_budget(lab: Lab) -> None:
    assert lab.command("pin", "a", PREFIX)["budget_blocks"] == 20
    answer = lab.command("pin", "b", tokens(4, 13 * SIZE + 1))
    assert (answer["ok"], answer["reason"]) == (False, "BudgetExceeded")
    assert (answer["blocks_pinned"], lab.used_blocks()) == (8, 8)


def test_two_pins_in_one_step_cannot_exceed_the_budget(lab: Lab) -> None:
    names = [lab.send("pin", str(seed), tokens(seed, 12 * SIZE + 1)) for seed in (5, 6)]
    lab.run()
    reasons = sorted(lab.answer(name)["reason"] for name in names)
    assert reasons == ["", "BudgetExceeded"]
    assert lab.used_blocks() == 12


def test_a_cache_salt_makes_other_blocks(lab: Lab) -> None:
    text = lab.wire("pin", "a", 8 * SIZE, PREFIX)
    lab.ask(PREFIX, extra={"promptprefix": text}, salt="tenant")
    lab.press()
    assert lab.table.blocks_pinned == 8
    assert lab.cached(chat(PREFIX)) == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_client_that_hangs_up_pins_nothing(lab: Lab, steps: int) -> None:
    text = lab.wire("pin", "a", 8 * SIZE, PREFIX)
    name = lab.add(PREFIX, max_tokens=50, extra={"promptprefix": text})
    for _ in range(steps):
        lab.step()
    lab.abort(name)
    lab.run()
    assert lab.table.pins == ()
    assert lab.used_blocks() == 0
    assert not lab.scheduler._desk.knows(name)
    assert name not in lab.answers


def test_leases_run_out_in_a_busy_engine(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("promptprefix_vllm.scheduler.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(lab.scheduler._desk, "_monotonic", lambda: clock[0])
    lab.command("pin", "a", PREFIX, lease=10)
    lab.command("pin", "b", tokens(2, 2 * SIZE + 1), lease=10)
    clock[0] += 5
    lab.command("renew", "b", lease=60)
    clock[0] += 6
    lab.ask(tokens(3, 10))
    assert [pin.id for pin in lab.table.pins] == ["b"]
    report = lab.command("report")
    assert [(item["id"], item["reason"]) for item in report["released"]] == [("a", "LeaseExpired")]
    assert lab.used_blocks() == 2


def test_hits_are_those_of_users(lab: Lab) -> None:
    lab.command("pin", "a", PREFIX)
    lab.command("pin", "a", PREFIX)
    lab.ask(PREFIX[: 4 * SIZE] + tokens(8, 40))
    assert lab.command("report")["pins"][0]["hits"] == 0
    lab.ask(chat(PREFIX, 11))
    lab.ask(chat(PREFIX, 12))
    (pin,) = lab.command("report")["pins"]
    assert pin["hits"] == 2
    assert 0 <= pin["last_hit_age_s"] < 60


def test_evicted_hashes_are_reported_and_warmed_again(lab: Lab) -> None:
    lab.command("pin", "a", PREFIX)
    victim = lab.table.pins[0].held[3].block.block_id
    lab.pool.evict_blocks({victim})
    (pin,) = lab.command("report")["pins"]
    assert (pin["resident_tokens"], pin["pinned_tokens"]) == (3 * SIZE, 3 * SIZE)
    (pin,) = lab.command("pin", "a", PREFIX)["pins"]
    assert (pin["resident_tokens"], pin["pinned_tokens"]) == (8 * SIZE, 8 * SIZE)
    lab.press()
    assert lab.cached(chat(PREFIX)) == 8 * SIZE
    lab.command("unpin", "a")
    assert lab.used_blocks() == 0


def test_a_request_without_a_command_is_unaffected(lab: Lab) -> None:
    name = lab.ask(PREFIX)
    assert lab.answers[name] is None
    name = lab.ask(PREFIX, extra={"other": 1})
    assert lab.answers[name] is None


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "0"},
        {"expiry": 1},
        {"counter": 0},
        {"mac": "0" * 64},
        {"v": 3},
    ],
    ids=str,
)
def test_refused_commands_do_nothing(lab: Lab, change: dict[str, Any]) -> None:
    lab.command("pin", "mine", tokens(2, 2 * SIZE + 1))
    signed = {name: value for name, value in change.items() if name != "mac"}
    command = json.loads(lab.wire("pin", "a", 8 * SIZE, PREFIX, **signed))
    text = json.dumps({**command, **change})
    name = lab.ask(PREFIX, extra={"promptprefix": text})
    answer = lab.answer(name)
    assert answer.keys() == {"v", "ok", "reason", "message"}
    assert not answer["ok"]
    assert [pin.id for pin in lab.table.pins] == ["mine"]


def test_a_replay_and_another_prompt_do_nothing(lab: Lab) -> None:
    text = lab.wire("pin", "a", 8 * SIZE, PREFIX)
    other = tokens(5, 8 * SIZE + 1)
    assert lab.answer(lab.ask(other, extra={"promptprefix": text}))["reason"] == "BadMac"
    assert lab.answer(lab.ask(PREFIX, extra={"promptprefix": text}))["ok"]
    lab.command("unpin", "a")
    assert lab.answer(lab.ask(PREFIX, extra={"promptprefix": text}))["reason"] == "Replayed"
    assert lab.table.pins == ()


@pytest.mark.parametrize("argument", [7, 1.5, ["x"], "", "{}", "x" * 100_000, {"a": 1}])
def test_nonsense_does_nothing(lab: Lab, argument: Any) -> None:
    name = lab.ask(PREFIX, extra={"promptprefix": argument})
    assert lab.answer(name)["reason"] == "Malformed"
