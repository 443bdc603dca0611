import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster import binaries as kubernetes
from e2e.cluster import cgroups, control_plane, dns, host, image, node
from e2e.cluster.api import Api, wait_until
from e2e.cluster.binaries import CONTROLLERS, Binaries, Progress
from e2e.cluster.control_plane import NODE_NAME, Credentials
from e2e.cluster.errors import ClusterError
from e2e.cluster.image import Images
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.network import Network
from e2e.cluster.slot import Lock, Slot
from e2e.tools import coredns


def _silent(_: str) -> None: ...


def default_slot() -> int:
    return int(os.environ.get("PROMPTPREFIX_CLUSTER_SLOT", "0"))


@dataclass
class Cluster:
    """A Kubernetes control plane and, unless left out, one node; ended by leaving the block."""

    slot: Slot
    lock: Lock
    binaries: Binaries
    namespaces: Namespaces
    images: Images | None
    coredns: Path | None
    keep: bool

    @classmethod
    def start(
        cls,
        *,
        progress: Progress = _silent,
        keep: bool = False,
        node: bool = True,
        slot: int | None = None,
    ) -> Self:
        """Start a cluster and wait until it takes pods (or, without a node, objects).

        With `keep` it outlives this program, until `python -m e2e.cluster down`.
        """
        host.check(progress, node=node)
        binaries = kubernetes.find_or_build(progress, node=node)
        images = image.find_or_build(progress) if node else None
        resolver = coredns.find_or_build(progress) if node else None
        place = Slot(Network(default_slot() if slot is None else slot))
        lock = Lock(place.network)
        if not lock.acquire(timeout=3):  # one whose program was just killed is ending
            lock.release()
            raise ClusterError(
                f"a cluster is already running in slot {place.network.slot}: use it, or end it "
                "with `python -m e2e.cluster down`"
            )
        started = time.monotonic()
        try:
            place.clean()
            cluster = cls._start_parts(place, lock, binaries, images, resolver, progress, keep)
        except BaseException:
            lock.release()
            raise
        progress(f"the cluster is ready after {time.monotonic() - started:.1f} s")
        return cluster

    @classmethod
    def _start_parts(
        cls,
        slot: Slot,
        lock: Lock,
        binaries: Binaries,
        images: Images | None,
        resolver: Path | None,
        progress: Progress,
        keep: bool,
    ) -> Self:
        slot.network.check_free()
        for folder in (slot.state, slot.state / "logs"):
            folder.mkdir(mode=0o700)
        namespaces = Namespaces.create(slot.network, slot.state, lock)
        cluster = cls(slot, lock, binaries, namespaces, images, resolver, keep)
        try:
            namespaces.prepare()
            credentials = Credentials.create(slot.state, slot.network)
            api = Api.create(slot.network, credentials)
            cluster._start_all(credentials, api, progress)
        except BaseException:
            cluster.stop()
            raise
        if keep:
            namespaces.keep()
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.keep:
            self.stop()

    @property
    def state_dir(self) -> Path:
        return self.slot.state

    @property
    def kubeconfig(self) -> Path:
        return self.slot.kubeconfig

    @property
    def image(self) -> str:
        """The image with this machine's Python; pods use it with imagePullPolicy: Never."""
        if not self.images:
            raise ClusterError("a cluster without a node has no image")
        return self.images.python

    def import_images(self, archive: Path) -> None:
        """Load an OCI or docker archive into the node: its pods then need no registry."""
        if not self.images:
            raise ClusterError("a cluster without a node takes no images")
        socket = node.containerd_socket(self.state_dir)
        self.namespaces.run(
            ["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "import", str(archive)]
        )

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 60.0) -> str:
        """Return what kubectl prints; raise ClusterError with its complaint, or on a time-out."""
        try:
            done = subprocess.run(
                [self.binaries.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
                input=input, capture_output=True, text=True, timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {error}") from None
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def wait_for_end(self) -> None:
        """Return when the namespaces end, for instance by `python -m e2e.cluster down`."""
        self.namespaces.unshare.wait()

    def stop(self) -> None:
        """End the cluster and remove all that it made; again is harmless."""
        if self.lock.held:
            self.namespaces.stop()
            self.slot.clean()
            self.lock.release()

    def _start_all(self, credentials: Credentials, api: Api, progress: Progress) -> None:
        network, parts = self.slot.network, self.namespaces
        with _step("etcd and kube-apiserver", progress):
            parts.start(control_plane.etcd(self.binaries, self.state_dir, credentials))
            parts.start(control_plane.apiserver(self.binaries, network, credentials))
            if self.images:  # the API server mostly waits, and needs none of this
                self._start_containerd(self.images)
            self._wait("kube-apiserver ready", api.healthy, "kube-apiserver", 90)
        with _step("the other parts", progress):
            if self.binaries.has(*CONTROLLERS):
                parts.start(control_plane.controller_manager(self.binaries, network, credentials))
                parts.start(control_plane.scheduler(self.binaries, credentials))
            else:
                progress(f"without {' and '.join(CONTROLLERS)}: not in {self.binaries.folder}")
            if self.images:
                self._start_kubelet(credentials)
            rights = [control_plane.KUBELET_CLIENT_BINDING, *dns.rights()]
            objects = {"apiVersion": "v1", "kind": "List", "items": rights}
            self.kubectl("create", "-f", "-", input=json.dumps(objects))
            if self.coredns:
                parts.start(dns.coredns(self.coredns, self.state_dir, credentials, network))
            self._wait_for_all(api)

    def _start_containerd(self, images: Images) -> None:
        socket = node.containerd_socket(self.state_dir)
        self.namespaces.start(node.containerd(self.state_dir, self.slot.network, images.sandbox))
        self._wait("containerd's socket", socket.exists, "containerd", 30)
        self.import_images(images.archive)

    def _start_kubelet(self, credentials: Credentials) -> None:
        cgroups.create(self.slot.cgroup)
        state, network = self.state_dir, self.slot.network
        self.namespaces.start(
            node.kubelet(self.binaries, state, self.slot.cgroup, credentials, network)
        )
        self.namespaces.start(node.kube_proxy(self.binaries, state, credentials, network))

    def _wait_for_all(self, api: Api) -> None:
        if self.binaries.has(*CONTROLLERS):
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait(
                "the first ServiceAccount",
                lambda: api.exists(account),
                "kube-controller-manager",
                60,
            )
        if self.images:
            self._wait("the node Ready", lambda: api.node_ready(NODE_NAME), "kubelet", 90)
            self._wait("kube-proxy healthy", self._answers(10256, "healthz"), "kube-proxy", 30)
            self._wait("CoreDNS ready", self._answers(dns.READY_PORT, "ready"), "coredns", 30)

    def _answers(self, port: int, path: str) -> Callable[[], bool]:
        url = f"http://{self.slot.network.node_address}:{port}/{path}"

        def asked() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return True
            except (urllib.error.URLError, TimeoutError):
                return False

        return asked

    def _wait(self, what: str, condition: Callable[[], bool], part: str, timeout: float) -> None:
        try:
            wait_until(what, condition, self.namespaces.check_running, timeout)
        except TimeoutError as error:
            raise ClusterError(f"{error}\n{self.namespaces.log_tail(part)}") from None


@contextmanager
def _step(name: str, progress: Progress) -> Iterator[None]:
    started = time.monotonic()
    yield
    progress(f"{name}: {time.monotonic() - started:.1f} s")
