"""Our router beside plain Envoy and other routers: ``python -m bench.router``.

Everything runs at once on this machine, over the same engines that answer at once, and is loaded in
turns. Prints a report and writes it to ``build/router.json``. Needs `wrk` on the PATH; the other
routers are installed from the package index into the user's cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.contestants import Contestant, OurRouter, answers, plain_envoy, rival, running
from bench.decisions import decisions, flat_memory
from bench.legs import Leg, Load, in_full, medians, ratios, run_turns
from bench.prompts import LARGE, SMALL, Prompt, prompt, write_prompts
from bench.rivals import SMG, VLLM_ROUTER
from e2e.router.stack import free_ports, public_folder

REPORT = Path("build/router.json")
ENGINES = 4
DECLARED = 200
LARGE_ONES = 20
"""So many of the declared prefixes are of 100 kB bodies."""
CONNECTIONS = 16
FEW_CONNECTIONS = 2
FLEETS = ((5, 20), (500, 2000))
"""Pods and declared prefixes of a small fleet and of a large one."""
PARTS = ("small", "large", "fleets", "decisions", "memory")
PLAIN, HEADER, BODY = "plain Envoy", "ours, header", "ours, body"

Json = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The command line."""

    parts: tuple[str, ...]
    turns: int
    seconds: int
    prompts: int
    rivals: bool


def arguments() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.router", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--turns", type=int, default=6, help="of each comparison")
    parser.add_argument("--seconds", type=int, default=3, help="of each leg")
    parser.add_argument("--prompts", type=int, default=1_000_000, help="distinct ones, for memory")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false")
    found = parser.parse_args()
    return Options(tuple(found.parts), found.turns, found.seconds, found.prompts, found.rivals)


@contextlib.asynccontextmanager
async def engines(addresses: Sequence[str]) -> AsyncIterator[None]:
    """Run engines that answer at once, all in one process."""
    async with running(sys.executable, "-m", "bench.instant_backend", *addresses):
        for address in (addresses[0], addresses[-1]):
            await answers(f"http://{address}/health")
        yield


async def against_others(options: Options, folder: Path, report: Json) -> None:
    """Compare with plain Envoy and the rivals, at 10 kB and 100 kB."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(ENGINES)]
    declared = [prompt(n, LARGE if n < LARGE_ONES else SMALL) for n in range(DECLARED)]
    files = (folder / "small.tsv", folder / "large.tsv")
    write_prompts(files[0], declared[LARGE_ONES:])
    write_prompts(files[1], declared[:LARGE_ONES])
    async with AsyncExitStack() as closing:
        enter = closing.enter_async_context
        await enter(engines(addresses))
        plain = await enter(plain_envoy(folder / "plain", addresses))
        ours = await enter(OurRouter(folder / "ours", addresses, declared).serving())
        rivals = []
        if options.rivals:
            rivals = [await enter(rival(each, addresses)) for each in (VLLM_ROUTER, SMG)]
        header = Contestant(HEADER, ours.port, ours.pids, named=True)
        body = Contestant(BODY, ours.port, ours.pids)
        # What is compared runs one after the other.
        order = [plain, header, *rivals[:1], body, *rivals[1:]]
        if "small" in options.parts:
            load = Load(files[0], CONNECTIONS, options.seconds)
            report["small"] = await compared(ours, order, load, options.turns)
        if "large" in options.parts:
            load = Load(files[1], FEW_CONNECTIONS, options.seconds)
            report["large"] = await compared(ours, order, load, options.turns)


async def compared(
    ours: OurRouter, contestants: Sequence[Contestant], load: Load, turns: int
) -> Json:
    """Return the medians of all, the ratios of ours, and how ours decided meanwhile."""
    before = await _counts(ours)
    legs = await run_turns(contestants, load, turns, warm_up_s=1)
    after = await _counts(ours)
    found: Json = {"medians": {name: medians(each) for name, each in legs.items()}}
    found["ratios"] = {
        f"{mine} / {theirs}": {
            figure: ratios(legs[mine], legs[theirs], figure)
            for figure in ("per_second", "cpu_ms", "p50_ms", "p99_ms")
        }
        for mine in (HEADER, BODY)
        for theirs in legs
        if theirs != mine
    }
    found["our_decisions"] = {name: after[name] - before[name] for name in after}
    found["legs"] = in_full(legs)
    return found


async def _counts(ours: OurRouter) -> dict[str, float]:
    """Return how requests matched, and how many were served without the picker's answer."""
    name = "promptprefix_router_decisions_total"
    return {
        "by_fingerprint_to_warm": await ours.metric(name, match="fingerprint", outcome="warm"),
        "by_header_to_warm": await ours.metric(name, match="header", outcome="warm"),
        "all": await ours.metric(name),
        "bypassed": await ours.stat("envoy_http_ext_authz_failure_mode_allowed"),
    }


async def fleets(options: Options, folder: Path, report: Json) -> None:
    """Compare the router of a large fleet with that of a small one."""
    async with AsyncExitStack() as closing:
        contestants: list[Contestant] = []
        legs: dict[str, list[Leg]] = {}
        loads: list[Load] = []
        for pods, prefixes in FLEETS:
            (port,) = free_ports(1)
            addresses = [
                f"127.{pods // 100 + 1}.{n // 250}.{n % 250 + 1}:{port}" for n in range(pods)
            ]
            await closing.enter_async_context(engines(addresses))
            declared = [prompt(n, SMALL) for n in range(prefixes)]
            ours = await closing.enter_async_context(
                OurRouter(folder / f"fleet-{pods}", addresses, declared).serving()
            )
            name = f"{pods} pods, {prefixes} prefixes"
            contestants.append(Contestant(name, ours.port, ours.pids))
            path = folder / f"fleet-{pods}.tsv"
            write_prompts(path, declared[: FLEETS[0][1]])
            loads.append(Load(path, CONNECTIONS, options.seconds))
        small, large = (each.name for each in contestants)
        for turn in range(options.turns + 1):
            pair = list(zip(contestants, loads, strict=True))
            for each, load in pair if turn % 2 else reversed(pair):
                found = (await run_turns([each], load, 1, warm_up_s=1))[each.name]
                # The first turn warms up.
                legs.setdefault(each.name, []).extend(found if turn else [])
    report["fleets"] = {
        "medians": {name: medians(each) for name, each in legs.items()},
        "ratios": {
            f"{large} / {small}": {
                figure: ratios(legs[large], legs[small], figure)
                for figure in ("per_second", "cpu_ms", "p50_ms")
            }
        },
        "legs": in_full(legs),
    }


async def picker_alone(options: Options, folder: Path, report: Json) -> None:
    """Look at the picker's door: how long decisions take, and whether its memory grows."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(ENGINES)]
    declared: list[Prompt] = [prompt(n, SMALL) for n in range(DECLARED)]
    async with engines(addresses):
        if "decisions" in options.parts:
            router = OurRouter(folder / "decisions", addresses, declared, picker_cores=(0,))
            async with router.serving():
                report["decisions"] = await decisions(router, folder, seconds=10)
        if "memory" in options.parts:
            router = OurRouter(folder / "memory", addresses, declared)
            async with router.serving():
                report["memory"] = await flat_memory(router, folder, options.prompts)


def table(report: Json) -> str:
    """Return the report for people."""
    lines: list[str] = []
    for part in ("small", "large", "fleets"):
        if part not in report:
            continue
        lines.append(
            f"\n{part:34} requests/s   CPU ms   p50 ms   p99 ms  errors  others  CPU ms of"
        )
        for name, row in report[part]["medians"].items():
            lines.append(
                f"  {name:32} {row['per_second']:10.0f} {row['cpu_ms']:8.3f} {row['p50_ms']:8.2f}"
                f" {row['p99_ms']:8.2f} {row['errors']:7.0f} {row['others']:7.2f}  "
                + " ".join(f"{process} {ms:.3f}" for process, ms in row["cpu_ms_of"].items())
            )
        for pair, found in report[part]["ratios"].items():
            told = (f"{figure} {each['median']:.3f}" for figure, each in found.items())
            lines.append(f"  {pair}: {', '.join(told)}")
        if "our_decisions" in report[part]:
            lines.append(f"  {report[part]['our_decisions']}")
    for part in ("decisions", "memory", "failed"):
        if part in report:
            lines.append(f"\n{part}: {json.dumps(report[part], indent=1)}")
    return "\n".join(lines)


def write_report(report: Json) -> None:
    """Put what was found so far in `REPORT`."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


async def measure(options: Options) -> int:
    """Measure every part; what was found so far is in the report. Return the exit status."""
    report: Json = {
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "options": vars(options),
    }
    begun = time.monotonic()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if options.rivals and {"small", "large"} & set(options.parts):
        for each in (SMG, VLLM_ROUTER):
            await asyncio.to_thread(each.install)
    groups: tuple[tuple[set[str], Callable[[Options, Path, Json], Any]], ...] = (
        ({"small", "large"}, against_others),
        ({"fleets"}, fleets),
        ({"decisions", "memory"}, picker_alone),
    )
    for parts, run in groups:
        if parts & set(options.parts):
            with public_folder() as folder:
                try:
                    await run(options, folder, report)
                except (AssertionError, OSError, TimeoutError, httpx.HTTPError) as error:
                    # The other parts are worth having.
                    failed = report.setdefault("failed", {})
                    failed[run.__name__] = f"{type(error).__name__}: {error}"
                    traceback.print_exception(error)
            report["took_s"] = round(time.monotonic() - begun, 1)
            write_report(report)
    print(table(report))
    return 1 if "failed" in report else 0


if __name__ == "__main__":
    if shutil.which("wrk") is None:
        sys.exit("bench.router needs wrk, the load generator (Debian: apt-get install wrk)")
    chosen = arguments()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(asyncio.run(measure(chosen)))
