"""What the demo runs on: its own cluster, or an existing one named by a kubeconfig context."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from e2e import deployment
from e2e.application import Application, ensure_application
from e2e.cache import cache_root
from e2e.cluster import Cluster
from e2e.cluster.image import find_or_build
from e2e.deployment import SYSTEM, WORKLOAD, EngineCommand, Sources
from e2e.engine.environment import Environment, ensure_environment
from e2e.engine.model import ensure_model
from e2e.engine.server import EngineOptions, engine_arguments, engine_environment

Progress = Callable[[str], None]

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
        """Run kubectl and return its output; raise `DemoError` with what it said."""
        return _kubectl(self.kubectl_command, *arguments, input=input, timeout=timeout)


@dataclass(frozen=True)
class Parts:
    """Everything slow to build, from the cache or new."""

    application: Application
    environment: Environment
    model: Path

    def sources(self, image: str) -> Sources:
        """Return what pods are made of."""
        return Sources(
            image=image,
            dependencies=self.application.dependencies,
            packages=self.application.packages,
            vllm=self.environment.vllm_cache.parent,
            model=self.model,
        )

    def engine(self) -> EngineCommand:
        """Return the engine container's command and environment, at the places of its mounts."""
        folder = self.environment.vllm_cache.parent
        site_packages = self.environment.site_packages.relative_to(folder)
        cache = self.environment.vllm_cache.relative_to(folder)
        options = EngineOptions(host="0.0.0.0", port=ENGINE_PORT, fork=False)  # noqa: S104 - a pod's own address
        return EngineCommand(
            command=("python3", *engine_arguments("/opt/model", options)),
            env=engine_environment(
                site_packages=f"/opt/vllm/{site_packages}",
                plugin="/opt/plugin",
                vllm_cache=f"/opt/vllm/{cache}",
                home="/tmp",
                key_file="/run/promptprefix/key/key",
            ),
        )


@contextmanager
def open_stand(
    context: str, keep: bool, progress: Progress, stage: Callable[[str], None]
) -> Iterator[Stand]:
    """Build, start and deploy everything; end it when the block is left, unless ``keep``."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(_build, progress)
        if context:
            command: tuple[str, ...] = ("kubectl", "--context", context)
            images = find_or_build(progress)
            progress(
                f"context {context}: its node must have the image of {images.archive} and see "
                f"{cache_root()} at the same path"
            )
            image = images.python
        else:
            cluster = stack.enter_context(Cluster.start(progress=progress, keep=keep))
            command = (
                str(cluster.binaries.path("kubectl")),
                f"--kubeconfig={cluster.kubeconfig}",
            )
            image = cluster.image
        parts = slow.result()
        stage("build and cluster")
        kubectl = _Kubectl(command)
        deployment.deploy(kubectl, parts.sources(image), parts.engine())
        _wait_ready(kubectl, progress)
        stand = _connect(stack, command, kubectl, forward=bool(context))
        _wait_routed(stand)
        stage("pods ready")
        yield stand


@dataclass(frozen=True)
class _Kubectl:
    command: tuple[str, ...]

    def __call__(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:
        return _kubectl(self.command, *arguments, input=input, timeout=timeout)


def _kubectl(
    command: Sequence[str], *arguments: str, input: str | None = None, timeout: float = 60
) -> str:
    try:
        done = subprocess.run(
            [*command, *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise DemoError(f"{command[0]} is not on the PATH: install kubectl") from error
    if done.returncode:
        raise DemoError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _build(progress: Progress) -> Parts:
    application = ensure_application(progress)
    environment = ensure_environment(progress)
    model = ensure_model(environment.python, cache_root(), progress)
    return Parts(application, environment, model)


def _wait_ready(kubectl: _Kubectl, progress: Progress) -> None:
    begin = time.monotonic()
    said: dict[str, str] = {}
    wanted = (
        (SYSTEM, "promptprefix-operator"),
        (SYSTEM, "promptprefix-router"),
        (WORKLOAD, "vllm"),
    )
    while True:
        found = [pod for where, app in wanted for pod in deployment.pods(kubectl, where, app)]
        words = {pod["metadata"]["name"]: deployment.describe(pod) for pod in found}
        for name, text in words.items():
            if said.get(name) != text:
                progress(f"{name}: {text}")
        said = words
        if len(found) == 2 + REPLICAS and all(deployment.is_ready(pod) for pod in found):
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


def _connect(
    stack: ExitStack, command: tuple[str, ...], kubectl: _Kubectl, *, forward: bool
) -> Stand:
    def reach(namespace: str, pod: str, address: str, port: int) -> str:
        if not forward:
            return f"http://{address}:{port}"
        return stack.enter_context(_forwarded(command, namespace, pod, port))

    def urls(namespace: str, app: str, *ports: int) -> Iterator[tuple[str, ...]]:
        for found in deployment.pods(kubectl, namespace, app):
            name, address = found["metadata"]["name"], found["status"]["podIP"]
            yield (name, *(reach(namespace, name, address, port) for port in ports))

    _, router_url, stats_url = next(urls(SYSTEM, "promptprefix-router", ROUTER_PORT, STATS_PORT))
    engines = tuple(Engine(*entry) for entry in urls(WORKLOAD, "vllm", ENGINE_PORT, SIDECAR_PORT))
    return Stand(command, router_url, stats_url, engines)


@contextmanager
def _forwarded(command: Sequence[str], namespace: str, pod: str, port: int) -> Iterator[str]:
    process = subprocess.Popen(
        [*command, "port-forward", "-n", namespace, f"pod/{pod}", f":{port}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        local = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not local:
            raise DemoError(f"port-forward to {namespace}/{pod}:{port} failed: {line.strip()}")
        yield f"http://127.0.0.1:{local[1]}"
    finally:
        process.terminate()
        process.wait()
