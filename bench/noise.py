"""Pinned prefixes under noise of ten times the cache, on real vLLM: ``python -m bench.noise``.

One engine holds pins of its whole budget; the other has a cache that is smaller by that budget and
no pins. Both run side by side and get the same noise in turns. Prints a report and writes it to
``build/noise.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.engine.client import EngineClient
from e2e.engine.server import BLOCK_SIZE, EngineOptions, running_engine
from e2e.engine.token_prompts import tokens

REPORT = Path("build/noise.json")
BLOCKS = 128
BUDGET = (BLOCKS - 1) // 2
CACHE_TOKENS = (BLOCKS - 1) * BLOCK_SIZE
PREFIX_BLOCKS = 40
USERS = 4

Json = dict[str, Any]


def noise(seed: int, times: float) -> list[list[int]]:
    """Return prompts of so many times the cache; a third of them continue a recent one."""
    chance = random.Random(seed)  # noqa: S311 - the same noise every time
    found: list[list[int]] = []
    size = 0
    while size < times * CACHE_TOKENS:
        if found and chance.random() < 1 / 3:
            head = chance.choice(found[-4:])
            prompt = [*head[:600], *tokens(chance.randrange(10**6), 60)]
        else:
            prompt = tokens(chance.randrange(10**6), chance.randint(400, 1000))
        found.append(prompt)
        size += len(prompt)
    return found


def send(client: EngineClient, prompts: Sequence[list[int]]) -> float:
    """Return the seconds that `USERS` users need for the prompts."""
    begun = time.monotonic()
    with ThreadPoolExecutor(USERS) as users:
        list(users.map(client.complete, prompts))
    return time.monotonic() - begun


def resident(
    client: EngineClient, prefix: Sequence[int], times: float, every: float
) -> tuple[float, int]:
    """Return the mean share of a prefix found cached, asked again after each ``every`` caches."""
    shares: list[float] = []
    for step in range(round(times / every)):
        send(client, noise(1000 + step, every))
        shares.append(client.cached_tokens([*prefix, 299]) / len(prefix))
    return statistics.fmean(shares), len(shares)


def legs(client: EngineClient, times: float) -> Json:
    """Return what stays of a prefix without a pin, kept recent, and pinned."""
    prefix = tokens(1, PREFIX_BLOCKS * BLOCK_SIZE)
    found: Json = {}

    def leg(name: str, prepare: Callable[[], object], every: float) -> None:
        client.post("/reset_prefix_cache")
        prepare()
        share, asked = resident(client, prefix, times, every)
        found[name] = {
            "resident_share": round(share, 3),
            "asked_every_caches": every,
            "asked": asked,
        }
        tell(f"{name}: {found[name]}")

    leg("no pin", lambda: client.complete([*prefix, 299]), times)
    # Asking is what keeps a soft pin recent: the interval says how often it is touched.
    leg("soft pin, touched twice per cache of noise", lambda: client.complete([*prefix, 299]), 0.5)
    leg("soft pin, touched every second cache of noise", lambda: client.complete([*prefix, 299]), 2)
    leg("hard pin", lambda: pin(client), 2)
    return found


def pin(client: EngineClient) -> None:
    """Use the whole budget."""
    rest = BUDGET - PREFIX_BLOCKS
    answers = [
        client.command("pin", "measured", [*tokens(1, PREFIX_BLOCKS * BLOCK_SIZE), 299]),
        client.command("pin", "rest", tokens(2, rest * BLOCK_SIZE + 1)),
    ]
    if not all(each["ok"] for each in answers) or answers[-1]["blocks_pinned"] != BUDGET:
        raise RuntimeError(f"the budget could not be pinned: {answers[-1]}")


def throughput(pinned: EngineClient, smaller: EngineClient, rounds: int) -> Json:
    """Return how fast the noise goes with pins, relative to a cache smaller by the budget."""
    pinned.post("/reset_prefix_cache")
    pin(pinned)
    ratios: list[float] = []
    spent = [0.0, 0.0]
    size = 0
    for number in range(rounds):
        prompts = noise(number, 10 / rounds)
        size += sum(len(each) for each in prompts)
        # Who goes first changes: whatever else the machine does should hit both.
        order = [(0, pinned), (1, smaller)]
        taken = {
            place: send(client, prompts) for place, client in order[:: -1 if number % 2 else 1]
        }
        spent = [spent[0] + taken[0], spent[1] + taken[1]]
        ratios.append(taken[1] / taken[0])
    report = pinned.command("report")
    return {
        "noise_tokens": size,
        "tokens_per_s_with_pins": round(size / spent[0]),
        "tokens_per_s_smaller_cache": round(size / spent[1]),
        "ratio": round(spent[1] / spent[0], 3),
        "ratio_of_rounds": [round(each, 3) for each in ratios],
        "pins_released": [each["reason"] for each in report["released"] if each["age_s"] < 300],
        "blocks_pinned": report["blocks_pinned"],
    }


def tell(line: str) -> None:
    """Say what takes time."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Run all legs."""
    parser = argparse.ArgumentParser(prog="bench.noise", description=__doc__)
    parser.add_argument("--times", type=float, default=10.0, help="noise, in sizes of the cache")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    # An engine starts only if its cache holds the longest sequence.
    short = ("--max-model-len", str((BLOCKS - BUDGET - 1) * BLOCK_SIZE))
    without = EngineOptions(blocks=BLOCKS - BUDGET, plugin=False, extra=short)
    with (
        running_engine(tell, EngineOptions(blocks=BLOCKS, extra=short), variables) as with_pins,
        running_engine(tell, without, variables) as smaller,
    ):
        pinned, other = EngineClient(with_pins), EngineClient(smaller)
        pinned.learn_epoch()
        for client in (pinned, other):
            send(client, noise(99, 0.5))  # the first requests of an engine are slower
        report: Json = {
            "blocks": BLOCKS - 1,
            "budget_blocks": BUDGET,
            "prefix_blocks": PREFIX_BLOCKS,
            "noise": throughput(pinned, other, given.rounds),
        }
        tell(json.dumps(report["noise"]))
        report["resident"] = legs(pinned, given.times)
    report["load_of_machine"] = round(os.getloadavg()[0], 1)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
