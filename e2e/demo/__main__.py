"""``python -m e2e.demo``: run the demo and print the table.

``KEEP=1`` leaves everything running and prints the addresses; ``KUBE_CONTEXT=name`` takes an
existing cluster instead of an own one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
from rich.console import Console

from e2e.cluster import ClusterError
from e2e.demo import measurements
from e2e.demo.measurements import Bench, Declared
from e2e.demo.report import Report
from e2e.demo.stand import DemoError, Stand, open_stand
from e2e.engine.environment import EnvironmentBuildError
from e2e.go import GoError
from e2e.install.programs import ProgramError

REPORT = Path(__file__).resolve().parents[2] / "build" / "demo-report.json"


class Clock:
    """Prints progress and keeps the seconds of each stage."""

    def __init__(self, console: Console, report: Report) -> None:
        self._console = console
        self._report = report
        self._begin = self._stage_begin = time.monotonic()

    def progress(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        self._console.print(
            f"[{time.monotonic() - self._begin:5.0f} s] {text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def stage(self, name: str) -> None:
        """Note that the stage ``name`` has ended."""
        now = time.monotonic()
        self._report.stages[name] = now - self._stage_begin
        self._stage_begin = now
        self.progress(f"done: {name} ({self._report.stages[name]:.1f} s)")


async def measure(stand: Stand, report: Report, clock: Clock) -> None:
    """Run all stages in order."""
    declared = Declared.load()
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        bench = Bench(stand, declared, client, report)
        measurements.clear(bench)
        before = await measurements.baseline(bench)
        clock.stage("workload without promptprefix")
        await measurements.cold(bench)
        own_before = await measurements.own_tokens(bench)
        clock.stage("cold prefixes")
        with declared.watch(stand) as watch:
            await measurements.apply(bench, watch)
            clock.stage("apply to Warm")
            await measurements.warm(bench, before, own_before)
            clock.stage("the same workload with promptprefix")
            await measurements.survival(bench)
            clock.stage("noise of twice the cache")
            await measurements.edit(bench, watch)
            clock.stage("edit to Warm")
            await measurements.restart(bench, watch)
            clock.stage("engine killed to Warm")
            measurements.versions(bench, watch)
        measurements.memory(bench)
        await measurements.delete(bench)
        clock.stage("delete")


def addresses(stand: Stand) -> str:
    """Return what to play with after ``KEEP=1``."""
    engines = "\n".join(f"  {engine.pod}: {engine.url}" for engine in stand.engines)
    return (
        f"left running:\n  router: {stand.router_url}\n{engines}\n"
        f"  kubectl: {' '.join(stand.kubectl_command)} -n ml get pp\n"
        "end it with: python -m e2e.cluster down"
    )


def main() -> int:
    """Run the demo; return the exit status."""
    console = Console()
    report = Report()
    clock = Clock(console, report)
    REPORT.unlink(missing_ok=True)  # a run that fails leaves no figures of an earlier one
    keep = os.environ.get("KEEP", "") not in ("", "0")
    try:
        with open_stand(
            os.environ.get("KUBE_CONTEXT", ""), keep, clock.progress, clock.stage
        ) as stand:
            asyncio.run(measure(stand, report, clock))
            if keep:
                console.print(addresses(stand), markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("interrupted: everything that was started has been ended")
        return 130
    except (
        ClusterError,
        DemoError,
        EnvironmentBuildError,
        GoError,
        ProgramError,
        TimeoutError,
        httpx.HTTPError,
        subprocess.SubprocessError,
    ) as error:
        console.print(f"the demo failed: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    report.write(REPORT)
    report.show(console)
    console.print(f"also written to {REPORT.relative_to(Path.cwd())}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
