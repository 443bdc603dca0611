"""A large fleet on a real API server: ``python -m bench.scale``.

1,000 PromptPrefixes over 200 pods: the operator is its own process with the chart's rights; each
pod is a real sidecar beside a simulated engine. Prints a report and writes it to
``build/scale.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.fleet_pods import APPLY, make_pods, team
from bench.kube_admin import PREFIXES, Json, KubeAdmin, PrefixWatch
from bench.simulated_fleet import Order, fleet
from bench.starvation import starved
from e2e.cluster import Cluster
from e2e.operator_stand import Operator, control_plane, get, operator, until

NAMESPACE = "ml"
REPORT = Path("build/scale.json")
SENTENCE = "Answer questions about invoices of customer group {}; name the rule that you apply. "


@dataclass(frozen=True)
class Size:
    """How large the fleet is, and how long is looked at it."""

    prefixes: int
    pods: int
    teams: int
    replicas: int
    edited: int
    quiet_s: float
    ready_s: float
    fleet_share: float
    operator_share: float


def arguments() -> Size:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--prefixes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--teams", type=int, default=5, help="each with its own pods and prefixes")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--edited", type=int, default=50)
    parser.add_argument("--quiet-s", type=float, default=120.0)
    parser.add_argument("--ready-s", type=float, default=360.0)
    share = "part of the time in which the process may run while everything is created"
    parser.add_argument("--fleet-share", type=float, default=1.0, help=share)
    parser.add_argument("--operator-share", type=float, default=1.0, help=share)
    return Size(**vars(parser.parse_args()))


def manifest(index: int, size: Size, edition: int = 0) -> Json:
    """Return a resource with about 6 kB of text; a tenth of it is an even share of the pods."""
    text = "".join(SENTENCE.format(f"{index}.{edition}.{line}") for line in range(75))
    selector = {"matchLabels": {"team": team(index, size.teams)}}
    return {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": f"prefix-{index}", "namespace": NAMESPACE},
        "spec": {
            "model": "demo",
            "pods": {"selector": selector},
            "content": {"inline": {"systemInstructions": text}},
            "replicas": size.replicas,
            "priority": index % 7,
        },
    }


def applying(index: int, size: Size, edition: int = 0) -> tuple[str, str, Json, str]:
    """Return the request that applies a resource."""
    path = f"{PREFIXES.format(NAMESPACE)}/prefix-{index}?fieldManager=bench&force=true"
    return "PATCH", path, manifest(index, size, edition), APPLY


def peak_mb(pid: int) -> float:
    """Return the largest resident size that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def per_object(watch: PrefixWatch, before: Counter[str], names: Sequence[str]) -> Json:
    """Return how often each object was written since ``before``."""
    counts = sorted(watch.modified[name] - before[name] for name in names)
    return {
        "mean": round(sum(counts) / max(1, len(counts)), 3),
        "median": counts[len(counts) // 2],
        "p99": counts[len(counts) * 99 // 100],
        "largest": counts[-1],
    }


@dataclass
class Bench:
    """The running parts, and the report so far."""

    size: Size
    admin: KubeAdmin
    watch: PrefixWatch
    operator: Operator
    fleet: asyncio.subprocess.Process
    report: Json

    async def create(self) -> None:
        """Create everything at once and wait until all are Ready."""
        size, begun = self.size, time.monotonic()
        await self.admin.send_all(applying(index, size) for index in range(size.prefixes))
        created = time.monotonic() - begun
        tell(f"{size.prefixes} resources applied after {created:.1f} s")
        with self.starvation():
            done = await self.watch.until_ready(size.prefixes, size.ready_s)
        taken = time.monotonic() - begun
        await self.settle()
        self.report["create"] = {
            "created_s": round(created, 1),
            "all_ready_s": round(taken, 1) if done else None,
            "ready": self.watch.ready(),
            "not_ready": dict(self.watch.reasons()),
            "writes_per_object": per_object(self.watch, Counter(), list(self.watch.objects)),
            **await self.state(),
            "operator_complaints": complaints(self.operator),
        }

    @contextlib.contextmanager
    def starvation(self) -> Iterator[None]:
        """Take time away from the parts for which it was asked."""
        with (
            starved(self.fleet.pid, self.size.fleet_share),
            starved(self.operator.process.pid, self.size.operator_share),
        ):
            yield

    async def quiet(self) -> None:
        """Look while nothing changes."""
        modified, requests = self.watch.modified.copy(), await self.admin.writes()
        begun = cpu_seconds(self.operator.process.pid)
        await asyncio.sleep(self.size.quiet_s)
        written = await self.admin.writes()
        self.report["quiet"] = {
            "seconds": self.size.quiet_s,
            "writes_of_prefixes": (self.watch.modified - modified).total(),
            "requests_that_write": dict(written - requests),
            "operator_cpu_share": round(
                (cpu_seconds(self.operator.process.pid) - begun) / self.size.quiet_s, 3
            ),
        }

    async def edit(self) -> None:
        """Edit some at once and wait until all are Ready again."""
        size, before, begun = self.size, self.watch.modified.copy(), time.monotonic()
        generations = {n: o["metadata"]["generation"] for n, o in self.watch.objects.items()}
        await self.admin.send_all(applying(index, size, 1) for index in range(size.edited))
        names = [f"prefix-{index}" for index in range(size.edited)]

        def edited() -> bool:
            found = self.watch.objects
            return all(found[n]["metadata"]["generation"] > generations[n] for n in names)

        await until(edited, 60)
        done = await self.watch.until_ready(size.prefixes, 120)
        taken = time.monotonic() - begun
        await self.settle()
        others = [name for name in self.watch.objects if name not in set(names)]
        self.report["edit"] = {
            "edited": size.edited,
            "all_ready_s": round(taken, 1) if done else None,
            "not_ready": dict(self.watch.reasons()),
            # The first write of each is the edit itself.
            "writes_per_edited_object": per_object(self.watch, before + Counter(names), names),
            "writes_of_others": sum(self.watch.modified[n] - before[n] for n in others),
            **await self.state(),
        }

    async def settle(self) -> None:
        """Wait until no object was written for 10 s, at most a minute."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while True:
                    seen = self.watch.modified.total()
                    await asyncio.sleep(10)
                    if self.watch.modified.total() == seen:
                        return

    async def state(self) -> Json:
        """Return what the parts cost so far."""
        pid = self.operator.process.pid
        told = await metrics(self.operator)
        return {
            "load_of_machine": round(os.getloadavg()[0], 1),
            "operator_peak_mb": round(peak_mb(pid)),
            "operator_cpu_s": round(cpu_seconds(pid), 1),
            "fleet_cpu_s": round(cpu_seconds(self.fleet.pid), 1),
            "fleet_peak_mb": round(peak_mb(self.fleet.pid)),
            "status_writes": told.get('status_writes_total{result="written"}', 0),
            "status_writes_failed": told.get('status_writes_total{result="failed"}', 0),
            "events_posted": told.get('events_total{result="posted"}', 0),
            "plans": told.get("plan_seconds_count"),
            "plan_seconds": round(told.get("plan_seconds_sum", 0.0), 1),
            "plan_errors": told.get("plan_errors_total", 0),
            "questions": {
                name.removeprefix("sync_requests_total"): count
                for name, count in told.items()
                if name.startswith("sync_requests_total")
            },
        }


@contextlib.asynccontextmanager
async def standing(size: Size, server: Cluster, folder: Path) -> AsyncIterator[Bench]:
    """Start operator, pods and sidecars, and wait until all are connected."""
    admin = KubeAdmin(server.kubeconfig)
    begun = time.monotonic()
    pods = await make_pods(admin, NAMESPACE, size.pods, size.teams)
    tell(f"{size.pods} pods after {time.monotonic() - begun:.1f} s")
    async with operator(server, folder, NAMESPACE, LOG_LEVEL="info") as running:
        await until(lambda: "data" in get(server, "configmap", "promptprefix-ca"))
        authority = get(server, "configmap", "promptprefix-ca")["data"]["ca.crt"]
        url = f"https://127.0.0.1:{running.port}"
        async with fleet(Order(tuple(pods), url, authority, str(folder))) as found:
            begun = time.monotonic()
            await connected_to(running, size.pods)
            connected = round(time.monotonic() - begun, 1)
            tell(f"{size.pods} sidecars connected after {connected} s")
            watch = PrefixWatch(admin, NAMESPACE)
            report = {"size": vars(size), "all_connected_s": connected}
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch.run())
                await watch.opened.wait()
                yield Bench(size, admin, watch, running, found, report)
                watching.cancel()


async def connected_to(running: Operator, pods: int) -> None:
    """Wait until the operator plans with so many sidecars."""
    async with asyncio.timeout(180):
        while (await metrics(running)).get("connected_sidecars") != pods:  # noqa: ASYNC110
            await asyncio.sleep(2)


async def metrics(running: Operator) -> dict[str, float]:
    """Return the operator's own series, without their prefix; patient with a busy machine."""
    if running.process.returncode is not None:
        raise RuntimeError(f"the operator ended: {running.lines[-3:]}")
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.get(f"http://127.0.0.1:{running.metrics_port}/metrics")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if line[:1] != "#"]
    return {
        name.removeprefix("promptprefix_operator_"): float(value)
        for name, _, value in lines
        if name.startswith("promptprefix_operator_")
    }


def complaints(running: Operator) -> dict[str, int]:
    """Return what the operator warns of, and how often."""
    found = Counter(
        f"{each['event']}: {each.get('error', '')}"[:200]
        for each in running.lines
        if each["level"] not in ("debug", "info")
    )
    return dict(found.most_common(20))


def tell(line: str) -> None:
    """Say what takes time."""
    print(line, file=sys.stderr, flush=True)


async def run(size: Size, server: Cluster, folder: Path) -> Json:
    """Return the whole report."""
    async with standing(size, server, folder) as bench:
        for step in (bench.create, bench.quiet, bench.edit):
            await step()
            name = step.__name__
            tell(f"{name}: {json.dumps(bench.report[name])}")
            write(bench.report)  # a run that is cut short has told what it found until then
        bench.report["operator_complaints"] = complaints(bench.operator)
        return bench.report


def main() -> None:
    """Run the bench on a control plane of its own."""
    size = arguments()
    with control_plane() as server, tempfile.TemporaryDirectory(prefix="scale-") as name:
        report = asyncio.run(run(size, server, Path(name)))
    write(report)
    print(json.dumps(report, indent=1))


def write(report: Json) -> None:
    """Keep the report."""
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
