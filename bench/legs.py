"""Legs of a comparison: the same load through each contestant in turns, and their ratios."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.contestants import Contestant, cpu_seconds

SCRIPT = Path(__file__).with_name("wrk.lua")
_NUMBERS = count(10**9, 10**7)
"""Where a leg's requests begin to count, so that no turn of a user comes twice in a run."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """What one leg sends: requests without a pause over so many connections."""

    prompts: Path
    connections: int
    seconds: int


@dataclass(frozen=True)
class Leg:
    """What one leg showed.

    ``cpu_ms`` is the CPU time per request of everything between client and engines, ``cpu_ms_of``
    that of each process. ``others`` is how many cores processes used that are no part of the bench.
    """

    requests: int
    per_second: float
    cpu_ms: float
    cpu_ms_of: dict[str, float]
    p50_ms: float
    p99_ms: float
    errors: int
    others: float


async def run_leg(contestant: Contestant, load: Load) -> Leg:
    """Send the load through one contestant."""
    busy, own = _busy_seconds(), cpu_seconds([os.getpid()])
    spent = {name: cpu_seconds([pid]) for name, pid in contestant.pids.items()}
    seen = await _wrk(contestant, load)
    seconds = seen["microseconds"] / 1e6
    requests = max(1, seen["requests"])
    cpu_ms_of = {
        name: (cpu_seconds([pid]) - spent[name]) * 1000 / requests
        for name, pid in contestant.pids.items()
    }
    own = cpu_seconds([os.getpid()]) - own
    return Leg(
        requests=seen["requests"],
        per_second=seen["requests"] / seconds,
        cpu_ms=sum(cpu_ms_of.values()),
        cpu_ms_of=cpu_ms_of,
        p50_ms=seen["p50_us"] / 1000,
        p99_ms=seen["p99_us"] / 1000,
        errors=seen["errors"],
        others=max(0.0, (_busy_seconds() - busy - own) / seconds),
    )


async def run_turns(
    contestants: Sequence[Contestant], load: Load, turns: int, warm_up_s: int
) -> Mapping[str, list[Leg]]:
    """Send the load through each contestant in each turn; every other turn goes backwards."""
    for each in contestants:
        await run_leg(each, Load(load.prompts, load.connections, warm_up_s))
    legs: dict[str, list[Leg]] = {each.name: [] for each in contestants}
    for turn in range(turns):
        for each in contestants if turn % 2 == 0 else reversed(contestants):
            legs[each.name].append(await run_leg(each, load))
    return legs


def medians(legs: Sequence[Leg]) -> Json:
    """Return the median of each figure; errors and requests are sums."""
    told = {
        name: round(statistics.median(getattr(leg, name) for leg in legs), 3)
        for name in ("per_second", "cpu_ms", "p50_ms", "p99_ms", "others")
    }
    return {
        **told,
        "cpu_ms_of": {
            name: round(statistics.median(leg.cpu_ms_of[name] for leg in legs), 3)
            for name in legs[0].cpu_ms_of
        },
        "requests": sum(leg.requests for leg in legs),
        "errors": sum(leg.errors for leg in legs),
    }


def ratios(ours: Sequence[Leg], theirs: Sequence[Leg], figure: str) -> dict[str, object]:
    """Return ours over theirs for each turn, and the median of these."""
    turns = [
        round(getattr(one, figure) / max(getattr(other, figure), 1e-9), 3)
        for one, other in zip(ours, theirs, strict=True)
    ]
    return {"median": round(statistics.median(turns), 3), "turns": turns}


def in_full(legs: Mapping[str, Sequence[Leg]]) -> dict[str, list[Json]]:
    """Return every leg, for the report."""
    return {name: [_rounded(asdict(leg)) for leg in each] for name, each in legs.items()}


def _rounded(figures: Json) -> Json:
    return {
        key: _rounded(value) if isinstance(value, dict) else round(value, 3)
        for key, value in figures.items()
    }


async def _wrk(contestant: Contestant, load: Load) -> dict[str, int]:
    process = await asyncio.create_subprocess_exec(
        *("wrk", "-t1", f"-c{load.connections}", f"-d{load.seconds}s", "--timeout", "10s"),
        *("-s", str(SCRIPT), f"http://127.0.0.1:{contestant.port}/", "--"),
        *(str(load.prompts), "yes" if contestant.named else "no", str(next(_NUMBERS))),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(load.seconds + 30):
            out, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    found: dict[str, int] = json.loads(out.decode().rstrip().rpartition("\n")[2])
    return found


def _busy_seconds() -> float:
    """Return the CPU time that all processes of the machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft, _ = (int(each) for each in fields[:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
