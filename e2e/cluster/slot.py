import fcntl
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network

# Fixed, and outside the cache: two caches must not hide one cluster's leftovers from each other.
STATE_ROOT = Path("/var/lib/promptprefix-cluster")


class Lock:
    """Held while a cluster of this slot lives: its process 1 inherits the open file."""

    def __init__(self, network: Network) -> None:
        STATE_ROOT.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file: BinaryIO = (STATE_ROOT / f"{network.slot}.lock").open("ab")

    @property
    def held(self) -> bool:
        return not self._file.closed

    def fileno(self) -> int:
        return self._file.fileno()

    def acquire(self, timeout: float = 0.0) -> bool:
        """Return whether the slot is ours now; `timeout` is in seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.05)
            else:
                return True

    def release(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Slot:
    """One place for a cluster on this machine, and what a cluster leaves in it."""

    network: Network

    @property
    def state(self) -> Path:
        return STATE_ROOT / str(self.network.slot)

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def cgroup(self) -> str:
        return f"promptprefix-{self.network.slot}"

    def running(self) -> bool:
        lock = Lock(self.network)
        try:
            return not lock.acquire()
        finally:
            lock.release()

    def end(self) -> bool:
        """End the cluster in this slot, whoever started it; false when there was none."""
        lock = Lock(self.network)
        try:
            running = not lock.acquire()
            if running:
                self._kill()
                if not lock.acquire(timeout=30):
                    raise ClusterError("the cluster did not end within 30 s")
            self.clean()
        finally:
            lock.release()
        return running

    def clean(self) -> None:
        """Remove what an ended cluster left; only for the holder of the slot's lock."""
        self.network.disconnect()
        if busy := cgroups.remove(self.cgroup):
            raise ClusterError(f"these cgroups still hold processes: {', '.join(map(str, busy))}")
        if self.state.exists():
            shutil.rmtree(self.state)

    def _kill(self) -> None:
        try:
            pid = int((self.state / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            raise ClusterError("the cluster is just starting or ending: try again") from None
        if b"pid1.py" not in command:  # the number may be another process's by now
            raise ClusterError("the cluster is just ending: try again")
        os.kill(pid, signal.SIGKILL)
