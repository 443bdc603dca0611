"""Whatever happens between two steps, every block is counted right and given back once.

The asynchronous scheduler schedules step n+1 before the results of step n are in, so commands,
aborts, resets and preemptions fall between the two.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from e2e.engine.tests.lab import SIZE, Lab, new_scheduler, tokens

PREFIX = tokens(1, 6 * SIZE + 1)
OPERATIONS: dict[str, Callable[[Lab], Any]] = {
    "pin": lambda lab: lab.send("pin", "p", PREFIX),
    "pin another": lambda lab: lab.send("pin", "q", PREFIX[: 3 * SIZE] + tokens(9, 2 * SIZE + 1)),
    "unpin": lambda lab: lab.send("unpin", "p"),
    "evict": lambda lab: lab.send("evict", "p"),
    "warm": lambda lab: lab.send("warm", "", PREFIX, count=len(PREFIX) - 1),
    "renew": lambda lab: lab.send("renew", "p"),
    "valve": lambda lab: lab.table.release_lowest(0.0),
    "expire": lambda lab: lab.table.release_expired(1e12),
    "abort": lambda lab: lab.abort("r2"),
    "abort all": lambda lab: lab.abort(None),
    "preempt": lambda lab: lab.scheduler.reset_prefix_cache(reset_running_requests=True),
    "reset": lambda lab: lab.scheduler.reset_prefix_cache(),
    "user": lambda lab: lab.add(PREFIX + tokens(8, 20), max_tokens=3),
}


def settle(lab: Lab) -> None:
    """All work ends, all pins are given up, and nobody holds a block any more."""
    lab.run()
    lab.check()
    for pin in lab.table.pins:
        lab.command("unpin", pin.id)
    lab.ask(tokens(70, 10))
    lab.check()
    assert lab.used_blocks() == 0
    assert {block.ref_cnt for block in lab.pool.blocks[1:]} == {0}
    assert lab.scheduler.reset_prefix_cache()


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("name", OPERATIONS)
def test_between_two_steps(lab: Lab, name: str, steps: int, pinned: bool) -> None:
    lab.command("pin" if pinned else "report", "p" if pinned else "", PREFIX if pinned else (1,))
    # r2 shares the pinned blocks and decodes across a block's end.
    lab.add(PREFIX + tokens(7, SIZE - 3), max_tokens=8)
    lab.add(tokens(6, 9 * SIZE), max_tokens=4)
    for _ in range(steps):
        lab.step()
        lab.check()
    assert len(lab.in_flight) == (0 if lab.depth == 1 else min(steps, 1))
    OPERATIONS[name](lab)
    lab.check()
    settle(lab)


def test_evicted_blocks_that_steps_in_flight_use(lab: Lab) -> None:
    lab.command("pin", "p", PREFIX)
    user = lab.add(PREFIX + tokens(7, 10), max_tokens=6)
    lab.step()
    lab.step()
    evict = lab.send("evict", "p")
    assert lab.cached(PREFIX + tokens(3, 10)) == 0
    other = lab.add(PREFIX + tokens(5, 10), max_tokens=2)
    lab.run()
    assert {user, other, evict} <= lab.finished
    settle(lab)


@pytest.mark.parametrize("seed", range(12))
def test_anything_in_any_order(asynchronous: bool, seed: int) -> None:
    lab = Lab(new_scheduler(31, asynchronous=asynchronous), depth=2 if asynchronous else 1)
    dice = random.Random(seed)  # noqa: S311
    prompts = [tokens(20 + number % 3, (2 + number) * SIZE + 1) for number in range(8)]
    for _ in range(120):
        act = dice.randrange(12)
        prompt, name = dice.choice(prompts), dice.choice("pqrs")
        if act < 3:
            lab.add(prompt + tokens(dice.randrange(99), 30), max_tokens=dice.randrange(1, 50))
        elif act < 6:
            lab.send("pin", name, prompt, priority=dice.randrange(3))
        elif act < 8:
            lab.send(dice.choice(["unpin", "evict", "renew"]), name)
        elif act == 8:
            lab.send("warm", "", prompt, count=len(prompt) - 1)
        elif act == 9 and lab.scheduler.requests:
            lab.abort(dice.choice(sorted(lab.scheduler.requests)))
        elif act == 10 and not dice.randrange(4):
            lab.scheduler.reset_prefix_cache(reset_running_requests=bool(dice.randrange(2)))
        for _ in range(dice.randrange(4)):
            lab.step()
            lab.check()
    settle(lab)


def test_preempted_requests_keep_nothing_of_a_pin(asynchronous: bool) -> None:
    """Three that grow while pins hold half of the cache: the last ones are preempted."""
    lab = Lab(new_scheduler(31, asynchronous=asynchronous), depth=2 if asynchronous else 1)
    lab.command("pin", "p", tokens(1, 14 * SIZE + 1))
    names = [lab.add(tokens(40 + number, 4 * SIZE), max_tokens=5 * SIZE) for number in range(3)]
    preempted: set[str] = set()
    for _ in range(5 * SIZE):
        lab.step()
        lab.check()
        preempted |= {
            name
            for name in names
            if name in lab.scheduler.requests and lab.scheduler.requests[name].num_preemptions
        }
    lab.run()
    assert preempted
    assert [pin.id for pin in lab.table.pins] == ["p"]
    assert lab.finished >= set(names)
    settle(lab)


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_pause_and_resume_with_pins_held(lab: Lab, state: PauseState) -> None:
    lab.command("pin", "p", PREFIX)
    running = lab.add(PREFIX + tokens(7, 10), max_tokens=6)
    lab.step()
    lab.step()
    lab.scheduler.set_pause_state(state)
    late, warm_up = lab.add(tokens(5, 40)), lab.send("pin", "q", tokens(4, 2 * SIZE + 1))
    for _ in range(12):
        lab.step()
        lab.check()
    assert late not in lab.finished
    assert warm_up not in lab.finished
    assert (running in lab.finished) == (state is PauseState.PAUSED_NEW)
    assert not lab.scheduler.has_unfinished_requests()
    lab.scheduler.set_pause_state(PauseState.UNPAUSED)
    lab.run()
    assert {running, late, warm_up} <= lab.finished
    assert [pin.id for pin in lab.table.pins] == ["p", "q"]
    settle(lab)


def test_a_warm_up_that_waits_survives_a_pause(lab: Lab) -> None:
    lab.add(tokens(44, 30 * SIZE), max_tokens=5)
    lab.step()
    waiting = lab.add(tokens(45, 12 * SIZE))
    held = lab.send("pin", "q", PREFIX)
    lab.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for _ in range(4):
        lab.step()
    lab.scheduler.set_pause_state(PauseState.UNPAUSED)
    lab.run()
    assert waiting in lab.finished
    assert lab.answer(held)["ok"]
    settle(lab)


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_sleep_and_wake_with_pins_held(lab: Lab, mode: str) -> None:
    """What vLLM's engine core does to its scheduler at sleep levels 1 and 2, in its order."""
    lab.command("pin", "p", PREFIX)
    user = lab.add(PREFIX + tokens(7, 10), max_tokens=6)
    lab.step()
    lab.step()
    if mode == "abort":
        lab.abort(None)
        lab.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    else:
        lab.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    while lab.in_flight:
        lab.step()
    assert lab.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    lab.check()
    assert lab.used_blocks() == 0
    assert lab.cached(PREFIX) == 0
    # Commands that come to a sleeping engine wait as everything does.
    renew, pin = lab.send("renew", "p"), lab.send("pin", "p", PREFIX)
    lab.scheduler.set_pause_state(PauseState.UNPAUSED)
    lab.run()
    assert (user in lab.finished) == (mode == "keep")
    assert lab.answer(renew)["reason"] == "UnknownPin"
    answer = lab.answer(pin)
    assert (answer["ok"], answer["pin_epoch"]) == (True, 1)
    assert ("p", "CacheReset") in [(item["id"], item["reason"]) for item in answer["released"]]
    settle(lab)
