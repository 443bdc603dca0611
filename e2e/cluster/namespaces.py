import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Network
from e2e.cluster.slot import Lock

PID1 = Path(__file__).with_name("pid1.py")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The kubelet sets these and they have no namespace: it gets plain files in their place.
KERNEL_WIDE_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@dataclass(frozen=True)
class Part:
    name: str
    command: Sequence[str]


@dataclass
class Namespaces:
    """Own network, mount and process namespaces, in which the cluster's parts run.

    Killing process 1 ends every process, mount, interface and packet filter rule in them.
    """

    network: Network
    state: Path
    unshare: subprocess.Popen[bytes]
    pid: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def create(cls, network: Network, state: Path, lock: Lock) -> "Namespaces":
        log = state / "logs" / "unshare.log"
        with log.open("wb") as errors:
            unshare = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                 sys.executable, "-I", "-S", str(PID1)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                pass_fds=[lock.fileno()], start_new_session=True, env={"PATH": SEARCH_PATH},
            )  # fmt: skip
        assert unshare.stdout
        if unshare.stdout.readline() != b"ready\n":
            unshare.wait()
            raise ClusterError(
                "new network, mount and process namespaces cannot be made here (inside a "
                f"container they need CAP_SYS_ADMIN): {log.read_text().strip()}"
            )
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
        namespaces = cls(network, state, unshare, int(children))
        (state / "pid").write_text(str(namespaces.pid))
        return namespaces

    def prepare(self) -> None:
        """Give the namespaces their interface and their own /run, /var/log and /var/lib/cni."""
        self.network.connect(self.pid)
        Path("/var/lib/cni").mkdir(exist_ok=True)  # a fixed path of the CNI library
        script = [
            "set -e",
            "ip link set lo up",
            f"ip addr add {self.network.node_address}/30 dev eth0",
            "ip link set eth0 up",
            # The API server dials webhooks by ClusterIP. The packet filter turns that into a pod's
            # address only after a route was found.
            f"ip route add {self.network.services} dev eth0 src {self.network.node_address}",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "mount -t tmpfs -o mode=755 tmpfs /run",
        ]
        # Images and container roots in memory, about 160 MB: unmounting them from a busy disk
        # takes seconds, since it writes them out first.
        (self.state / "containerd").mkdir(mode=0o700)
        script.append(f"mount -t tmpfs -o mode=700 tmpfs {self.state}/containerd")
        for target in ("/var/log", "/var/lib/cni"):
            source = self.state / "mounts" / target[1:]
            source.mkdir(parents=True)
            script.append(f"mount --bind {source} {target}")
        for setting in KERNEL_WIDE_SETTINGS:
            original, copy = Path("/proc/sys", setting), self.state / "mounts/sysctl" / setting
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(original.read_text())
            script.append(f"mount --bind {copy} {original}")
        self.run(["sh", "-c", "\n".join(script)])
        self.network.add_routes()

    def enter(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--wd=/",
                "--", *command]  # fmt: skip

    def run(self, command: Sequence[str], timeout: float = 120.0) -> str:
        done = subprocess.run(
            self.enter(command), capture_output=True, text=True, timeout=timeout,
            env=self._environment(), check=False,
        )  # fmt: skip
        if done.returncode:
            raise ClusterError(f"{command[0]} failed in the node: {done.stderr.strip()}")
        return done.stdout

    def start(self, part: Part) -> None:
        with self.log_file(part.name).open("wb") as log:
            self.running[part.name] = subprocess.Popen(
                self.enter(part.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self._environment(),
            )  # fmt: skip

    def check_running(self) -> None:
        for name, process in self.running.items():
            if (status := process.poll()) is not None:
                raise ClusterError(f"{name} ended with status {status}\n{self.log_tail(name)}")

    def log_file(self, name: str) -> Path:
        return self.state / "logs" / f"{name}.log"

    def log_tail(self, name: str, lines: int = 25) -> str:
        file = self.log_file(name)
        tail = file.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- the end of {file}", *tail])

    def keep(self) -> None:
        """Let the namespaces outlive this program."""
        assert self.unshare.stdin
        self.unshare.stdin.write(b"keep\n")
        self.unshare.stdin.close()

    def stop(self) -> None:
        if self.unshare.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        # unshare ends when process 1 is reaped, which the kernel does after all the others.
        self.unshare.wait(timeout=30)
        for stream in (self.unshare.stdin, self.unshare.stdout):
            if stream:
                stream.close()
        for process in self.running.values():
            process.wait(timeout=30)

    def _environment(self) -> dict[str, str]:
        temporary = self.state / "tmp"
        temporary.mkdir(exist_ok=True)
        return {"PATH": SEARCH_PATH, "HOME": str(self.state), "TMPDIR": str(temporary)}
