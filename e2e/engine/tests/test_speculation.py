"""Pins while requests decode several drafted tokens a step, some of them rejected."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm.config import SpeculativeConfig
from vllm.v1.outputs import DraftTokenIds

from e2e.engine.tests.lab import SIZE, Lab, new_scheduler, tokens

PREFIX = tokens(1, 8 * SIZE + 1)
DRAFTED = 3


def with_drafts(config: Any) -> None:
    config.speculative_config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=DRAFTED,
        prompt_lookup_max=DRAFTED,
        prompt_lookup_min=1,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )


@dataclass
class DraftingLab(Lab):
    """Every step takes some of the drafts of the step before, and drafts anew."""

    dice: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311
    accepted: int = 0

    def sample(self, name: str, output: Any) -> list[int]:
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        taken = self.dice.randint(0, drafts)
        self.accepted += taken
        return [7] * (1 + taken)

    def step(self) -> None:
        super().step()
        if self.depth == 1:
            names = [request.request_id for request in self.scheduler.running]
            drafts = [[7] * self.dice.randint(0, DRAFTED) for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))


@pytest.fixture
def drafting(asynchronous: bool) -> DraftingLab:
    scheduler = new_scheduler(61, asynchronous=asynchronous, change=with_drafts)
    return DraftingLab(scheduler, depth=2 if asynchronous else 1)


def test_a_pin_survives_and_is_hit(drafting: DraftingLab) -> None:
    assert drafting.command("pin", "p", PREFIX)["blocks_pinned"] == 8
    drafting.press()
    drafting.ask(PREFIX[:-1] + tokens(5, 40), max_tokens=3 * SIZE)
    drafting.check()
    assert drafting.accepted > 0
    (pin,) = drafting.command("report")["pins"]
    assert (pin["hits"], pin["pinned_tokens"]) == (1, 8 * SIZE)
    drafting.command("unpin", "p")
    assert drafting.used_blocks() == 0


@pytest.mark.parametrize("seed", range(4))
def test_anything_in_any_order(drafting: DraftingLab, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    for _ in range(80):
        prompt = tokens(20 + dice.randrange(3), dice.randrange(2, 9) * SIZE + 1)
        act, name = dice.randrange(8), dice.choice("pqr")
        if act < 3:
            drafting.add(prompt + tokens(dice.randrange(99), 30), max_tokens=dice.randrange(1, 90))
        elif act < 5:
            drafting.send("pin", name, prompt)
        elif act < 7:
            drafting.send(dice.choice(["unpin", "evict"]), name)
        elif drafting.scheduler.requests:
            drafting.abort(dice.choice(sorted(drafting.scheduler.requests)))
        for _ in range(dice.randrange(4)):
            drafting.step()
            drafting.check()
    drafting.run()
    for pin in drafting.table.pins:
        drafting.command("unpin", pin.id)
    drafting.check()
    assert drafting.used_blocks() == 0
