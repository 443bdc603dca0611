"""The picker's door alone: how long a decision takes, and what a million prompts leave behind."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from bench.contestants import OurRouter, resident_mb
from bench.prompts import Shape, prompt, write_prompts

RATE = 500
TINY = Shape(system=1_200, tools=1, turn=400)
"""A body of 2 kB: what is remembered of a prompt doesn't depend on its size."""
SAMPLES = 20
_BUCKET = "promptprefix_router_decision_seconds_bucket"
_BOUNDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2)

Json = dict[str, Any]


async def decisions(router: OurRouter, folder: Path, seconds: float) -> Json:
    """Ask 500 times a second: declared prefixes that are remembered, and texts never seen.

    ``inside_p99_ms`` is from the picker's own metric, by linear interpolation in a bucket;
    ``door`` is what a client sees from when its question was due, waiting included.
    """
    path = folder / "decisions.tsv"
    write_prompts(path, router.prompts)
    found: Json = {"rate": RATE}
    await _ask(router, path, "--seconds", "2", "--first", str(10**7))
    for name, more in (("remembered", ()), ("never_seen", ("--fresh",))):
        before = await _buckets(router)
        door = await _ask(router, path, "--seconds", str(seconds), "--first", str(10**8), *more)
        after = await _buckets(router)
        counts = {bound: after[bound] - before[bound] for bound in after}
        found[name] = {"inside_p99_ms": quantile_ms(counts, 0.99), "door": door}
    return found


async def flat_memory(router: OurRouter, folder: Path, count: int) -> Json:
    """Ask about so many prompts, no two of which begin alike, as fast as they are answered."""
    path = folder / "tiny.tsv"
    write_prompts(path, [prompt(n, TINY) for n in range(100)])
    sizes = [resident_mb(router.picker.pid)]
    door: Json = {}
    asked = 0
    for step in range(SAMPLES):
        number = str(10**9 + step * 10**7)
        more = ("--fresh", "--rate", "0", "--first", number, "--count", str(count // SAMPLES))
        door = await _ask(router, path, "--seconds", "600", *more)
        asked += door["questions"]
        sizes.append(resident_mb(router.picker.pid))
    return {
        "prompts": asked,
        "resident_mb": [round(size, 1) for size in sizes],
        "after_warm_up_mb": round(sizes[SAMPLES // 4], 1),
        "last_mb": round(sizes[-1], 1),
        "largest_mb": round(max(sizes), 1),
        "last_step": door,
    }


def quantile_ms(counts: dict[float, float], share: float) -> float:
    """Return a quantile of a cumulative histogram, as Prometheus estimates it, in ms."""
    wanted = counts[math.inf] * share
    lower_bound, lower = 0.0, 0.0
    for bound, upper in sorted(counts.items()):
        if upper >= wanted and upper > lower:
            if math.isinf(bound):
                break
            return round(
                1000 * (lower_bound + (bound - lower_bound) * (wanted - lower) / (upper - lower)), 3
            )
        lower_bound, lower = bound, upper
    return lower_bound * 1000


async def _buckets(router: OurRouter) -> dict[float, float]:
    counts = {bound: await router.metric(_BUCKET, le=str(bound)) for bound in _BOUNDS}
    return {**counts, math.inf: await router.metric(_BUCKET, le="+Inf")}


async def _ask(router: OurRouter, path: Path, *more: str) -> Json:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.questions"),
        *("--door", str(router.door), "--prompts", str(path), "--rate", str(RATE), *more),
        stdout=asyncio.subprocess.PIPE,
    )
    if len(cores := os.sched_getaffinity(0)) > 1 and router.picker_cores:
        os.sched_setaffinity(process.pid, cores - set(router.picker_cores))
    try:
        out, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    found: Json = json.loads(out)
    return found
