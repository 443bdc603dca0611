"""What the demo runs on: its own cluster, or an existing one named by a kubeconfig context."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from e2e.cache import cache_root
from e2e.cluster import Cluster
from e2e.cluster.image import find_or_build as find_or_build_base
from e2e.engine.environment import ensure_environment
from e2e.engine.model import ensure_model
from e2e.images import Images, build_images
from e2e.install import values
from e2e.install.folders import Folders
from e2e.install.programs import Helm, Kubectl, kubectl_of
from e2e.install.readings import is_ready, pods
from e2e.install.values import SYSTEM, TEAM
from e2e.install.workloads import namespace
from e2e.tools import helm

Progress = Callable[[str], None]

CHARTS = Path(__file__).resolve().parents[2] / "charts"
APP = "vllm"
COMPONENT = "app.kubernetes.io/name=promptprefix,app.kubernetes.io/component={}"
ROUTER_PODS = COMPONENT.format("router")
ENGINE_PODS = f"app={APP}"
ENGINE_PORT = 8000
SIDECAR_PORT = 8090
ROUTER_PORT = 8080
STATS_PORT = 9902
REPLICAS = 2
START_TIMEOUT_S = 900
ROUTED_TIMEOUT_S = 60


class DemoError(Exception):
    """The demo can't go on; the message says what to do."""


@dataclass(frozen=True)
class Engine:
    """One vLLM pod and how to reach it from here."""

    pod: str
    url: str
    sidecar_url: str


@dataclass(frozen=True)
class Stand:
    """A running deployment."""

    kubectl_command: tuple[str, ...]
    router_url: str
    stats_url: str
    engines: tuple[Engine, ...]

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return its output; raise `ProgramError` with what it said."""
        return Kubectl(self.kubectl_command)(*arguments, input=input, timeout=timeout)


@dataclass(frozen=True)
class Parts:
    """Everything slow to build, from the cache or new."""

    images: Images
    folders: Folders


@contextmanager
def open_stand(
    context: str, keep: bool, progress: Progress, stage: Callable[[str], None]
) -> Iterator[Stand]:
    """Build, start and deploy everything; end it when the block is left, unless ``keep``."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(_build, progress)
        program = pool.submit(helm.find_or_build, progress)
        if context:
            kubectl = kubectl_of("kubectl", ("--context", context))
            options: tuple[str, ...] = ("--kube-context", context)
            base = find_or_build_base(progress)
            parts = slow.result()
            progress(
                f"context {context}: its node must have the images of {base.archive} and "
                f"{parts.images.archive}, and see {cache_root()} at the same path"
            )
            image = base.python
        else:
            cluster = stack.enter_context(Cluster.start(progress=progress, keep=keep))
            options = (f"--kubeconfig={cluster.kubeconfig}",)
            kubectl = kubectl_of(str(cluster.binaries.path("kubectl")), options)
            image = cluster.image
            parts = slow.result()
            cluster.import_images(parts.images.archive)
        stage("build and cluster")
        _deploy(kubectl, Helm((str(program.result()), *options)), parts, image)
        _wait_ready(kubectl, progress)
        stand = _connect(stack, kubectl, forward=bool(context))
        _wait_routed(stand)
        stage("pods ready")
        yield stand


def _build(progress: Progress) -> Parts:
    images = build_images(progress)
    environment = ensure_environment(progress)
    model = ensure_model(environment.python, cache_root(), progress)
    return Parts(images, Folders(TEAM, environment, model))


def _deploy(kubectl: Kubectl, install: Helm, parts: Parts, image: str) -> None:
    """Install both charts as a user does."""
    kubectl.apply(namespace(SYSTEM), namespace(TEAM), *parts.folders.objects())
    ours = values.promptprefix(parts.images)
    # The gain is told against a router that knows of no prompt where it was sent before.
    ours["router"]["undeclaredMode"] = "least-load"
    # One operator, so that the memory measured is the leader's.
    ours["operator"] = {**ours["operator"], "replicas": 1}
    install.apply("install", "promptprefix", CHARTS / "promptprefix", SYSTEM, ours)
    engines = values.warm_vllm(parts.images, image, parts.folders)
    engines |= {"replicas": REPLICAS, "podLabels": {"app": APP}}
    install.apply("install", APP, CHARTS / "warm-vllm", TEAM, engines, wait=False)


def _describe(pod: Mapping[str, Any]) -> str:
    """Return the pod's containers and their states in one line, for progress."""
    status = pod.get("status", {})
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return " ".join(f"{s['name']}={_state(s)}" for s in states) or str(
        status.get("phase", "Pending")
    )


def _state(status: Mapping[str, Any]) -> str:
    if status.get("ready"):
        return "ready"
    state: dict[str, dict[str, Any]] = status.get("state", {})
    kind, detail = next(iter(state.items()), ("waiting", {}))
    return str(detail.get("reason") or kind)


def _wait_ready(kubectl: Kubectl, progress: Progress) -> None:
    begin = time.monotonic()
    said: dict[str, str] = {}
    wanted = ((SYSTEM, COMPONENT.format("operator")), (SYSTEM, ROUTER_PODS), (TEAM, ENGINE_PODS))
    while True:
        found = [pod for where, selector in wanted for pod in pods(kubectl, where, selector)]
        words = {pod["metadata"]["name"]: _describe(pod) for pod in found}
        for name, text in words.items():
            if said.get(name) != text:
                progress(f"{name}: {text}")
        said = words
        if len(found) == 2 + REPLICAS and all(map(is_ready, found)):
            return
        if time.monotonic() - begin > START_TIMEOUT_S:
            raise DemoError(f"the pods are not ready after {START_TIMEOUT_S} s: {words}")
        time.sleep(1)


def _wait_routed(stand: Stand) -> None:
    """Wait until Envoy itself counts every engine as healthy: a little after the pods are Ready."""
    series = 'envoy_cluster_membership_healthy{envoy_cluster_name="engines"}'
    deadline = time.monotonic() + ROUTED_TIMEOUT_S
    while time.monotonic() < deadline:
        lines = httpx.get(f"{stand.stats_url}/stats/prometheus", timeout=10).text.splitlines()
        if f"{series} {REPLICAS}" in lines:
            return
        time.sleep(0.2)
    raise DemoError(f"Envoy does not count {REPLICAS} healthy engines after {ROUTED_TIMEOUT_S} s")


def _connect(stack: ExitStack, kubectl: Kubectl, *, forward: bool) -> Stand:
    command = kubectl.command

    def reach(where: str, pod: str, address: str, port: int) -> str:
        if not forward:
            return f"http://{address}:{port}"
        return stack.enter_context(_forwarded(command, where, pod, port))

    def urls(where: str, selector: str, *ports: int) -> Iterator[tuple[str, ...]]:
        for found in pods(kubectl, where, selector):
            name, address = found["metadata"]["name"], found["status"]["podIP"]
            yield (name, *(reach(where, name, address, port) for port in ports))

    _, router_url, stats_url = next(urls(SYSTEM, ROUTER_PODS, ROUTER_PORT, STATS_PORT))
    engines = tuple(Engine(*entry) for entry in urls(TEAM, ENGINE_PODS, ENGINE_PORT, SIDECAR_PORT))
    return Stand(command, router_url, stats_url, engines)


@contextmanager
def _forwarded(command: tuple[str, ...], where: str, pod: str, port: int) -> Iterator[str]:
    process = subprocess.Popen(
        [*command, "port-forward", "-n", where, f"pod/{pod}", f":{port}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        local = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not local:
            raise DemoError(f"port-forward to {where}/{pod}:{port} failed: {line.strip()}")
        yield f"http://127.0.0.1:{local[1]}"
    finally:
        process.terminate()
        process.wait()
