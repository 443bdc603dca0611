"""Pins on an engine with a KV connector that loads late and delays the freeing of blocks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from e2e.engine.tests.lab import SIZE, new_scheduler, tokens
from e2e.engine.tests.tier import TierLab

PREFIX = tokens(1, 8 * SIZE + 1)


def with_tier(config: Any) -> None:
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="LateTier",
        kv_role="kv_both",
        kv_connector_module_path="e2e.engine.tests.tier",
    )


@pytest.fixture
def tier_lab(asynchronous: bool) -> TierLab:
    scheduler = new_scheduler(61, asynchronous=asynchronous, change=with_tier)
    assert scheduler.defer_block_free == asynchronous
    return TierLab(scheduler, depth=2 if asynchronous else 1)


def drain(lab: TierLab) -> None:
    lab.run()
    for _ in range(200):
        if not lab.scheduler.has_requests() and not lab.in_flight:
            break
        lab.step()
    lab.check()


def test_the_report_names_tier_and_role(tier_lab: TierLab) -> None:
    report = tier_lab.command("report")
    assert (report["offload_tier"], report["kv_role"]) == ("LateTier", "kv_both")


def test_a_pin_whose_blocks_are_still_being_sent(tier_lab: TierLab) -> None:
    tier_lab.hold = True
    name = tier_lab.send("pin", "p", PREFIX)
    for _ in range(4):
        tier_lab.step()
    assert tier_lab.answers[name] is not None
    assert tier_lab.answer(name)["blocks_pinned"] == 8
    assert (tier_lab.answers[name] or {})["theirs"]
    tier_lab.check()
    tier_lab.table.evict("p", now=0)
    tier_lab.check()
    # The transfer still reads what nobody finds any more.
    assert tier_lab.used_blocks() == 9
    tier_lab.hold = False
    drain(tier_lab)
    assert tier_lab.used_blocks() == 0


def test_an_evicted_prefix_comes_back_from_the_tier(tier_lab: TierLab) -> None:
    tier_lab.command("pin", "p", PREFIX)
    drain(tier_lab)
    tier_lab.command("evict", "p")
    drain(tier_lab)
    assert (tier_lab.cached(PREFIX), tier_lab.used_blocks()) == (0, 0)
    user = tier_lab.add(PREFIX[:-1] + tokens(5, 40))
    for _ in range(3):
        tier_lab.step()
        tier_lab.check()
    drain(tier_lab)
    assert user in tier_lab.finished
    (watched,) = tier_lab.command("report")["watched"]
    assert (watched["matches"], watched["resident_tokens"]) == (1, 8 * SIZE)
    answer = tier_lab.command("pin", "p", PREFIX)
    assert (answer["ok"], answer["blocks_pinned"]) == (True, 8)


def test_a_warm_up_that_is_loaded_from_the_tier_is_pinned(tier_lab: TierLab) -> None:
    tier_lab.ask(PREFIX)
    drain(tier_lab)
    tier_lab.scheduler.kv_cache_manager.reset_prefix_cache()
    assert tier_lab.cached(PREFIX) == 0
    assert tier_lab.command("pin", "p", PREFIX)["blocks_pinned"] == 8
    drain(tier_lab)
    assert (tier_lab.cached(PREFIX[:-1] + tokens(5, 40)), tier_lab.used_blocks()) == (8 * SIZE, 8)


@pytest.mark.parametrize("seed", range(8))
def test_anything_in_any_order(tier_lab: TierLab, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    for _ in range(120):
        prompt = tokens(20 + dice.randrange(4), dice.randrange(2, 12) * SIZE + 1)
        act, name = dice.randrange(10), dice.choice("pqr")
        if act < 4:
            tier_lab.add(prompt + tokens(dice.randrange(99), 30), max_tokens=dice.randrange(1, 50))
        elif act < 6:
            tier_lab.send("pin", name, prompt)
        elif act < 8:
            tier_lab.send(dice.choice(["unpin", "evict"]), name)
        elif tier_lab.scheduler.requests:
            tier_lab.abort(dice.choice(sorted(tier_lab.scheduler.requests)))
        tier_lab.hold = dice.randrange(3) == 0
        for _ in range(dice.randrange(4)):
            tier_lab.step()
            tier_lab.check()
    tier_lab.hold = False
    drain(tier_lab)
    for pin in tier_lab.table.pins:
        tier_lab.command("unpin", pin.id)
    drain(tier_lab)
    assert tier_lab.used_blocks() == 0
