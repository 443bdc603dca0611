"""What the story runs on: its own cluster, or an existing one named by ``KUBE_CONTEXT``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cache import cache_root
from e2e.cluster import Cluster
from e2e.cluster.image import find_or_build as find_or_build_base
from e2e.engine.environment import ensure_environment
from e2e.engine.model import ensure_model
from e2e.images import Images, build_images
from e2e.install.folders import Folders
from e2e.install.programs import Helm, Kubectl, kubectl_of
from e2e.install.readings import condition, pods
from e2e.install.values import SYSTEM, TEAM
from e2e.install.workloads import ENGINE_KEY
from e2e.tools import helm

Progress = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "charts"
SIDECAR = "promptprefix-sidecar"


@dataclass(frozen=True)
class Stand:
    """Programs, images and folders. ``base`` is an image with Python alone."""

    kubectl: Kubectl
    helm: Helm
    images: Images
    base: str
    folders: Folders
    scratch: Path

    def pods(self, selector: str, namespace: str = TEAM) -> list[dict[str, Any]]:
        """Return the pods that are not being deleted, oldest first."""
        return pods(self.kubectl, namespace, selector)

    def prefix(self, name: str) -> dict[str, Any]:
        """Return a PromptPrefix of the team."""
        return self.kubectl.read("promptprefix", name, "-n", TEAM)

    def wait_ready(self, name: str, timeout_s: int = 120) -> dict[str, Any]:
        """Wait until the newest generation of a PromptPrefix is Ready."""

        def ready() -> bool:
            found = condition(self.prefix(name), "Ready")
            return found.get("status") == "True"

        wait_until(f"PromptPrefix {name} is Ready", ready, timeout_s, lambda: self.prefix(name))
        return self.prefix(name)

    def chat(self, pod: str, system: str, user: str, url: str) -> dict[str, Any]:
        """Send a chat request from within the cluster; return the answer's ``usage``."""
        body = {
            "model": "demo",
            "max_tokens": 1,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
        }
        script = (
            "import json, urllib.request as u\n"
            f"r = u.Request({url + '/v1/chat/completions'!r}, data={json.dumps(body).encode()!r},"
            " headers={'content-type': 'application/json',"
            f" 'authorization': 'Bearer {ENGINE_KEY}'}})\n"
            "print(json.dumps(json.load(u.urlopen(r, timeout=120))['usage']))"
        )
        return dict(json.loads(self.kubectl.python(TEAM, pod, SIDECAR, script)))

    def sidecar_metric(self, pod: str, name: str) -> float:
        """Return the sum of a metric of a pod's sidecar over its series."""
        script = (
            "import urllib.request as u;"
            "print(u.urlopen('http://127.0.0.1:8090/metrics', timeout=10).read().decode())"
        )
        lines = self.kubectl.python(TEAM, pod, SIDECAR, script).splitlines()
        full = f"promptprefix_sidecar_{name}"
        values = [
            line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == full
        ]
        if not values:
            raise AssertionError(f"{pod}: the sidecar has no metric {full}")
        return sum(map(float, values))

    def events(self, reason: str, namespace: str = TEAM) -> list[dict[str, Any]]:
        """Return the Events with a reason."""
        listed = self.kubectl.read("events", "-n", namespace)["items"]
        return [event for event in listed if event["reason"] == reason]


@contextmanager
def open_stand(scratch: Path, progress: Progress) -> Iterator[Stand]:
    """Build what is missing and start a cluster; end it when the block is left."""
    context = os.environ.get("KUBE_CONTEXT", "")
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        program = helm.find_or_build(progress)
        environment = ensure_environment(progress)
        model = pool.submit(ensure_model, environment.python, cache_root(), progress)
        images = build_images(progress)
        folders = Folders(TEAM, environment, model.result())
        if context:
            progress(f"context {context}: its nodes must have the images of {images.archive}")
            kubectl = kubectl_of("kubectl", ("--context", context))
            options: tuple[str, ...] = ("--kube-context", context)
            base = find_or_build_base(progress).python
        else:
            cluster = stack.enter_context(Cluster.start(progress=progress))
            cluster.import_images(images.archive)
            config = f"--kubeconfig={cluster.kubeconfig}"
            kubectl = kubectl_of(str(cluster.binaries.path("kubectl")), (config,))
            options, base = (config,), cluster.image
        yield Stand(kubectl, Helm((str(program), *options)), images, base, folders, scratch)
        if context:
            _remove(kubectl)


def _remove(kubectl: Kubectl) -> None:
    for namespace in (TEAM, SYSTEM):
        kubectl("delete", "namespace", namespace, "--ignore-not-found", timeout=180)


def wait_until(
    what: str, fits: Callable[[], bool], timeout_s: float, state: Callable[[], object] = lambda: ""
) -> None:
    """Ask again until it fits; raise AssertionError with the state if it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not fits():
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {timeout_s:.0f} s: {what}; {state()}")
        time.sleep(0.3)
