import ipaddress
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

SLOTS = 10


@dataclass(frozen=True)
class Network:
    """Names and addresses of one cluster; clusters in different slots share none.

    Slot 0 uses 10.199.0.0/16, slot 1 uses 10.198.0.0/16, and so on.
    """

    slot: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.slot < SLOTS:
            raise ClusterError(f"the cluster's slot must be 0 to {SLOTS - 1}, not {self.slot}")

    @property
    def prefix(self) -> str:
        return f"10.{199 - self.slot}"

    @property
    def pods(self) -> str:
        return f"{self.prefix}.0.0/24"

    @property
    def services(self) -> str:
        return f"{self.prefix}.128.0/20"

    @property
    def apiserver_service(self) -> str:
        return f"{self.prefix}.128.1"

    @property
    def host_address(self) -> str:
        return f"{self.prefix}.255.1"

    @property
    def node_address(self) -> str:
        return f"{self.prefix}.255.2"

    @property
    def host_interface(self) -> str:
        return f"promptprefix{self.slot}"

    def check_free(self) -> None:
        """Raise when a route of the host, other than a default route, covers our addresses."""
        ours = ipaddress.ip_network(f"{self.prefix}.0.0/16")
        for route in json.loads(_ip("-json", "-4", "route", "show", "table", "all")):
            if route["dst"] == "default" or route.get("dev") == self.host_interface:
                continue
            taken = ipaddress.ip_network(route["dst"], strict=False)
            if taken.overlaps(ours):
                raise ClusterError(
                    f"the cluster's addresses {ours} overlap the host's route to {taken} "
                    f"({route.get('dev', 'no device')}); choose other addresses with "
                    f"PROMPTPREFIX_CLUSTER_SLOT=1 … {SLOTS - 1}"
                )

    def connect(self, pid: int) -> None:
        """Join the host and the network namespace of process `pid` by one veth pair."""
        _ip("link", "add", self.host_interface, "type", "veth",
            "peer", "name", "eth0", "netns", str(pid))  # fmt: skip
        _ip("addr", "add", f"{self.host_address}/30", "dev", self.host_interface)
        _ip("link", "set", self.host_interface, "up")

    def add_routes(self) -> None:
        """Let the host reach pods and ClusterIPs; the routes vanish with the interface."""
        for destination in (self.pods, self.services):
            _ip("route", "add", destination, "via", self.node_address,
                "dev", self.host_interface)  # fmt: skip

    def disconnect(self) -> None:
        if Path("/sys/class/net", self.host_interface).exists():
            subprocess.run(
                ["ip", "link", "delete", self.host_interface], capture_output=True, check=False
            )


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
