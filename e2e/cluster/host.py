import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.binaries import Progress
from e2e.cluster.errors import ClusterError
from e2e.cluster.namespaces import SEARCH_PATH
from e2e.cluster.node import CNI_PLUGINS

# What to look for, and the Debian package that brings it.
FOR_NAMESPACES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2"}
FOR_NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "iptables": "iptables",
    "mount": "mount",
}
ALTERNATIVE = "or set KUBE_CONTEXT to a context of your kubeconfig, to use a cluster you have"


def check(progress: Progress, *, node: bool) -> None:
    """Raise unless this machine can hold a cluster; install missing Debian packages."""
    if sys.platform != "linux":
        raise ClusterError(f"the cluster needs Linux, this is {sys.platform}; {ALTERNATIVE}")
    if os.geteuid() != 0:
        raise ClusterError(f"the cluster needs root, for namespaces and mounts; {ALTERNATIVE}")
    ensure_packages(progress, FOR_NAMESPACES | (FOR_NODE if node else {}))


def ensure_packages(progress: Progress, needed: dict[str, str]) -> None:
    missing = _missing(needed)
    if not missing:
        return
    names = " ".join(sorted(missing))
    if not shutil.which("apt-get"):
        raise ClusterError(
            f"missing on this machine: {names} (Debian's names of the packages), and there is no "
            f"apt-get to install them; install them, {ALTERNATIVE}"
        )
    progress(f"installing Debian packages: {names}")
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        _apt("update")
    _apt("install", "--yes", "--no-install-recommends", *sorted(missing))
    if missing := _missing(needed):
        raise ClusterError(f"still missing after their installation: {' '.join(sorted(missing))}")


def _missing(needed: dict[str, str]) -> set[str]:
    return {
        package
        for program, package in needed.items()
        if not shutil.which(program, path=SEARCH_PATH)
    }


def _apt(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    if done.returncode:
        raise ClusterError(_apt_failure(arguments, done.stderr.splitlines()))


def _apt_failure(arguments: Iterable[str], lines: list[str]) -> str:
    return "\n".join([f"apt-get {' '.join(arguments)} failed; {ALTERNATIVE}", *lines[-10:]])
