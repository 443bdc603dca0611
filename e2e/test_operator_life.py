"""The operator's process against a real API server: windows, orders of people on call, limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.operator_stand import (
    TEXT,
    Sidecar,
    apply,
    conditions,
    control_plane,
    events,
    get,
    manifest,
    operator,
    ready,
    sidecars,
    until,
)

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

PASS_SECONDS = 5.0
"""An order is in force after one pass; kubectl and the sidecars' answers take most of this."""
DAY = {"name": "day", "schedule": "* * * * *", "duration": "24h"}


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with control_plane() as started:
        yield started


@pytest.fixture(autouse=True)
def _clean(server: Cluster) -> Iterator[None]:
    yield
    server.kubectl("delete", "promptprefix", "--all", "-n", "ml", "--timeout=5s")


def opening_in(hours: int) -> dict[str, str]:
    """Return a window of one hour that opens in so many hours and now and then again."""
    opens = datetime.now(UTC) + timedelta(hours=hours)
    schedule = f"{opens.minute} {opens.hour} {opens.day} {opens.month} *"
    return {"name": "yearly", "schedule": schedule, "duration": "1h"}


def active(server: Cluster, name: str) -> tuple[str, str]:
    found = conditions(server, name).get("Active", {})
    return found.get("status", ""), found.get("reason", "")


def pinned(fakes: list[Sidecar]) -> int:
    return sum(each.pinned for each in fakes)


def order(server: Cluster, *arguments: str) -> str:
    """Run ``promptprefix`` as a person on call does, with kubectl in the PATH."""
    kubectl = Path(server.binaries.path("kubectl"))
    environment = {
        "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(server.kubeconfig),
        "HOME": str(server.state_dir),  # kubectl keeps a cache there
    }
    command = [sys.executable, "-c", "from promptprefix_cli.main import app; app()", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_windows_hold_a_prefix_and_orders_overrule_them(
    server: Cluster, tmp_path: Path
) -> None:
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        office = manifest("office", windows=[opening_in(100 * 24)])
        apply(server, office)
        await until(lambda: ready(server, "office") == ("True", "Released", 1))
        assert active(server, "office") == ("False", "OutsideWindows")
        assert pinned(fakes) == 0
        status = get(server, "promptprefix", "office")["status"]
        opens = datetime.fromisoformat(status["nextTransitionTime"])
        assert opens.second == 0
        assert timedelta(days=99) < opens - datetime.now(UTC) <= timedelta(days=100)

        said = order(server, "warm", "office", "-n", "ml", "--for", "2h")
        until_ = said.rpartition(" ")[2].strip()
        await until(lambda: active(server, "office") == ("True", "WarmNow"), PASS_SECONDS)
        await until(lambda: ready(server, "office") == ("True", "Warm", 1))
        assert pinned(fakes) == 2
        assert get(server, "promptprefix", "office")["status"]["nextTransitionTime"] == until_

        apply(server, office)
        metadata = get(server, "promptprefix", "office")["metadata"]
        assert metadata["annotations"] == {"promptprefix.dev/warm-now": until_}, (
            "it outlives a sync"
        )
        assert active(server, "office") == ("True", "WarmNow")
        order(server, "unpin", "office", "-n", "ml")
        await until(lambda: active(server, "office") == ("False", "Unpinned"), PASS_SECONDS)
        await until(lambda: pinned(fakes) == 0)
        annotations = get(server, "promptprefix", "office")["metadata"]["annotations"]
        assert annotations == {"promptprefix.dev/unpin": "true"}
        order(server, "unpin", "office", "-n", "ml", "--off")
        await until(lambda: active(server, "office") == ("False", "OutsideWindows"), PASS_SECONDS)

        apply(server, manifest("office", windows=[opening_in(100 * 24), DAY]))
        await until(lambda: ready(server, "office") == ("True", "Warm", 2))
        assert active(server, "office") == ("True", "InWindow")
        assert get(server, "promptprefix", "office")["status"]["activeWindow"] == "day"
        assert ready(server, "office")[2] == 2, "orders are no edits"
        server.kubectl("delete", "promptprefix", "office", "-n", "ml", "--timeout=5s")
        await until(lambda: [each.held for each in fakes] == [{}, {}])
    assert running.errors == []


async def test_an_order_that_can_not_be_read_is_told_once(server: Cluster, tmp_path: Path) -> None:
    async with operator(server, tmp_path) as running, sidecars(server, running):
        apply(server, manifest("typo"))
        await until(lambda: ready(server, "typo") == ("True", "Warm", 1))
        for value in ("tomorrow", "next week"):
            server.kubectl(
                "annotate", "promptprefix", "typo", "-n", "ml", "--overwrite",
                f"promptprefix.dev/unpin={value}",
            )  # fmt: skip
        await until(
            lambda: (
                "promptprefix.dev/unpin has no effect"
                in conditions(server, "typo")["Active"]["message"]
            ),
            PASS_SECONDS,
        )
        assert active(server, "typo") == ("True", "Held")
        await until(lambda: "InvalidAnnotation" in reasons(server, "typo"))
        assert reasons(server, "typo").count("InvalidAnnotation") == 1


def reasons(server: Cluster, name: str) -> list[str]:
    return [each["reason"] for each in events(server, name)]


async def test_a_percentage_of_the_pods(server: Cluster, tmp_path: Path) -> None:
    async with operator(server, tmp_path) as running, sidecars(server, running) as fakes:
        apply(server, manifest("half", replicas="50%"))
        await until(lambda: ready(server, "half") == ("True", "Warm", 1))
        assert get(server, "promptprefix", "half")["status"]["warm"] == "1/1"
        apply(server, manifest("half", replicas="51%"))
        await until(lambda: ready(server, "half") == ("True", "Warm", 2))
        assert get(server, "promptprefix", "half")["status"]["warm"] == "2/2"
        assert pinned(fakes) == 2


def sized(name: str, text: str, **spec: Any) -> str:
    """Return a prefix of 10 blocks, of which the planner thinks 16 before a pod tells its size."""
    return manifest(name, text=f"{text} {TEXT}", **spec)


async def test_a_namespace_keeps_to_its_limits(server: Cluster, tmp_path: Path) -> None:
    limits = json.dumps({"ml": {"budgetShare": 0.375, "maxPriority": 5}})
    async with (
        operator(server, tmp_path, LIMITS=limits) as running,
        sidecars(server, running) as fakes,
    ):
        for each in fakes:
            each.budget_blocks = 40  # of which the namespace may use 15
        apply(server, sized("first", "One.", priority=5))
        await until(lambda: ready(server, "first") == ("True", "Warm", 1))
        apply(server, sized("second", "Two.", priority=900))
        await until(lambda: ready(server, "second")[:2] == ("False", "BudgetExceeded"))
        # By its estimate it is too large for any pod; when it is measured, it lacks room alone.
        await until(lambda: "first" in conditions(server, "second")["Ready"]["message"])
        assert ready(server, "first") == ("True", "Warm", 1), "both count for 5"

        apply(server, sized("first", "One.", priority=4))
        await until(lambda: ready(server, "second") == ("True", "Warm", 1))
        await until(lambda: ready(server, "first")[:2] == ("False", "BudgetExceeded"))
        assert pinned(fakes) == 2, "one on each pod"
