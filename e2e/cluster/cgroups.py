import contextlib
import os
import time
from pathlib import Path


def hierarchies() -> list[Path]:
    """The mounted cgroup hierarchies: one for cgroup v2, one per controller for v1 and hybrid."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def create(name: str) -> None:
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        # A v1 cpuset group starts without CPUs and takes no process before it has some.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            file = group / setting
            if file.exists() and not file.read_text().strip():
                file.write_text((hierarchy / setting).read_text())


def leftovers(name: str) -> list[Path]:
    return [group for hierarchy in hierarchies() if (group := hierarchy / name).exists()]


def remove(name: str, timeout: float = 10.0) -> list[Path]:
    """Remove the groups and all below them; return those that still hold a process."""
    deadline = time.monotonic() + timeout
    while groups := leftovers(name):
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                # Busy until the kernel has reaped the last process: tried again below.
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            return leftovers(name)
        if leftovers(name):
            time.sleep(0.05)
    return []
