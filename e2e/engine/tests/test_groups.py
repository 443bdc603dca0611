"""Pins of models with sliding windows and several KV cache groups, on vLLM's own managers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, MambaSpec, SlidingWindowSpec

from e2e.engine.tests.lab import SIZE, Lab, attention, new_scheduler, tokens
from promptprefix_vllm.support import unsupported

PREFIX = tokens(1, 8 * SIZE + 1)
WINDOW = 3 * SIZE


def window(block_size: int = SIZE) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        sliding_window=WINDOW,
    )


# The specs of a model's groups, and how many blocks a pin of eight holds: a window of three blocks
# needs the last three only.
MODELS: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "windows whose blocks are all kept": (lambda: [attention(sliding_window=WINDOW)], 8),
    "chunks whose blocks are all kept": (lambda: [attention(attention_chunk_size=64)], 8),
    "windows only": (lambda: [window()], 3),
    "full attention and windows": (lambda: [attention(), window()], 11),
    "more windows than full attention": (lambda: [attention(), window(), window()], 14),
}


@pytest.fixture(params=[pytest.param(model, id=name) for name, model in MODELS.items()])
def model(request: pytest.FixtureRequest) -> tuple[list[Any], int]:
    specs, held = request.param
    return specs(), held


@pytest.fixture
def grouped(asynchronous: bool, model: tuple[list[Any], int]) -> Lab:
    scheduler = new_scheduler(121, asynchronous=asynchronous, specs=model[0])
    return Lab(scheduler, depth=2 if asynchronous else 1)


def press(lab: Lab) -> None:
    for number in range(14):
        lab.ask(tokens(900 + number, 30 * SIZE))


def test_a_pin_survives_and_goes(grouped: Lab, model: tuple[list[Any], int]) -> None:
    answer = grouped.command("pin", "p", PREFIX)
    assert answer["ok"], answer
    assert answer["blocks_pinned"] == model[1] == grouped.used_blocks()
    press(grouped)
    grouped.check()
    for seed in (5, 6):
        assert grouped.cached(PREFIX[:-1] + tokens(seed, 5 * SIZE)) == 8 * SIZE
        grouped.ask(PREFIX[:-1] + tokens(seed, 5 * SIZE), max_tokens=4)
    (pin,) = grouped.command("report")["pins"]
    assert pin["resident_tokens"] == pin["pinned_tokens"] == 8 * SIZE
    assert (pin["hits"], pin["matches"]) == (2, 2)
    grouped.command("unpin", "p")
    press(grouped)
    assert grouped.cached(PREFIX) == 0
    grouped.check()
    assert grouped.used_blocks() == 0


def test_evict_drops_the_blocks_of_every_group(grouped: Lab) -> None:
    grouped.command("pin", "p", PREFIX)
    (pin,) = grouped.command("evict", "p")["pins"]
    assert pin["resident_tokens"] == 0
    assert grouped.cached(PREFIX) == 0
    assert grouped.used_blocks() == 0


def test_pins_that_share_a_head(grouped: Lab) -> None:
    longer = PREFIX[: 8 * SIZE] + tokens(3, 4 * SIZE + 1)
    for name, prefix in (("short", PREFIX), ("long", longer)):
        assert grouped.command("pin", name, prefix)["ok"]
    press(grouped)
    assert grouped.cached(PREFIX[:-1] + tokens(5, 40)) == 8 * SIZE
    assert grouped.cached(longer[:-1] + tokens(5, 40)) == 12 * SIZE
    grouped.command("unpin", "long")
    press(grouped)
    assert grouped.cached(PREFIX[:-1] + tokens(5, 40)) == 8 * SIZE
    grouped.command("unpin", "short")
    assert grouped.used_blocks() == 0


def test_over_the_budget_of_blocks(asynchronous: bool) -> None:
    specs = [attention(), window(), window()]
    lab = Lab(new_scheduler(61, asynchronous=asynchronous, specs=specs), depth=1 + asynchronous)
    assert lab.command("pin", "p", tokens(1, 18 * SIZE + 1))["blocks_pinned"] == 24
    answer = lab.command("pin", "q", tokens(2, 3 * SIZE + 1))
    assert answer["reason"] == "BudgetExceeded"
    lab.check()


@pytest.mark.parametrize("seed", range(4))
def test_anything_in_any_order(grouped: Lab, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    for _ in range(60):
        prompt = tokens(20 + dice.randrange(3), dice.randrange(2, 9) * SIZE + 1)
        act = dice.randrange(6)
        if act < 2:
            grouped.add(prompt + tokens(dice.randrange(99), 30), max_tokens=dice.randrange(1, 90))
        elif act < 4:
            grouped.send("pin", dice.choice("pqr"), prompt)
        else:
            grouped.send(dice.choice(["unpin", "evict"]), dice.choice("pqr"))
        for _ in range(dice.randrange(4)):
            grouped.step()
            grouped.check()
    grouped.run()
    for pin in grouped.table.pins:
        grouped.command("unpin", pin.id)
    grouped.check()
    assert grouped.used_blocks() == 0


def chunked() -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32, attention_chunk_size=64
    )


def mamba() -> MambaSpec:
    return MambaSpec(block_size=SIZE, shapes=((1,),), dtypes=(torch.float32,))


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ([attention(), chunked()], "ChunkedLocalAttentionSpec"),
        ([attention(), mamba()], "MambaSpec"),
        ([attention(), window(2 * SIZE)], "different sizes"),
    ],
)
def test_other_groups_are_refused(asynchronous: bool, specs: list[Any], why: str) -> None:
    scheduler = new_scheduler(asynchronous=asynchronous)
    groups = scheduler.kv_cache_config.kv_cache_groups
    groups[:] = [type(groups[0])([f"layer{number}"], spec) for number, spec in enumerate(specs)]
    assert why in unsupported(scheduler)
