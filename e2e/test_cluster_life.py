"""Starting, ending and crashing; in other slots than the one that other tests use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import Cluster, ClusterError, cgroups
from e2e.cluster.binaries import ASSETS
from e2e.cluster.network import Network
from e2e.cluster.slot import Slot

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

SLOT = 9  # far from those that people choose


Process = tuple[int, str]  # a number and a start time, which tells its later owners apart


def processes() -> dict[Process, int]:
    """All processes of the machine, with their parents' numbers."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(entry.parent.name), fields[19]] = int(fields[1])
    return found


def descendants(pid: int) -> set[Process]:
    everything = processes()
    numbers = {pid}
    while more := {p[0] for p, parent in everything.items() if parent in numbers} - numbers:
        numbers |= more
    return {process for process in everything if process[0] in numbers - {pid}}


def leftovers(network: Network) -> list[str]:
    slot = Slot(network)
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mounts").read_text()
    found = [line for line in routes.splitlines() if line.startswith(network.prefix)]
    found += [line for line in mounts.splitlines() if str(slot.state) in line]
    found += [str(group) for group in cgroups.leftovers(slot.cgroup)]
    paths = (slot.state, Path("/sys/class/net", network.host_interface))
    return found + [str(path) for path in paths if path.exists()]


def command_line(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster", *arguments],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PROMPTPREFIX_CLUSTER_SLOT": str(SLOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(*arguments: str) -> tuple[int, str]:
    with command_line(*arguments) as process:
        output, _ = process.communicate()
    return process.returncode, output


def test_a_stop_leaves_nothing() -> None:
    with Cluster.start(slot=SLOT) as cluster:
        cluster.kubectl(
            "run", "pod", f"--image={cluster.image}", "--image-pull-policy=Never",
            "--command", "--", "sleep", "1000",
        )  # fmt: skip
        cluster.kubectl("wait", "--for=condition=Ready", "pod/pod", "--timeout=50s")
        running = descendants(os.getpid())
        assert leftovers(cluster.slot.network)
    assert len(running) > 10
    assert leftovers(cluster.slot.network) == []
    assert not running & processes().keys()


def test_a_start_after_a_crash_cleans_up() -> None:
    with command_line("up") as crashed:
        assert crashed.stdout
        assert any(line.startswith("Ctrl-C") for line in crashed.stdout)
        crashed.kill()
    network = Network(SLOT)
    # Process 1 of the namespaces ends with the program that started it, and frees the slot.
    assert leftovers(network)
    with Cluster.start(slot=SLOT, node=False) as cluster:
        assert cluster.kubectl("get", "--raw=/readyz") == "ok"
    assert leftovers(network) == []


def test_the_command_line_starts_and_ends_a_cluster() -> None:
    status, output = output_of("up", "--detach", "--no-node")
    try:
        assert status == 0
        assert output_of("status") == (
            0,
            "\n".join(["a cluster is running", *output.splitlines()[-1:], ""]),
        )
        with pytest.raises(ClusterError, match="already running in slot 9"):
            Cluster.start(slot=SLOT, node=False)
    finally:
        assert output_of("down") == (0, "the cluster is gone\n")
    assert output_of("status") == (1, "no cluster is running\n")
    assert leftovers(Network(SLOT)) == []


def test_incomplete_assets_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ClusterError, match=f"lacks {', '.join(ASSETS)}"):
        Cluster.start(slot=SLOT, node=False)
