import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root
from e2e.cluster.errors import ClusterError
from e2e.go import GoError, build, suitable_go

Progress = Callable[[str], None]

VERSION = "v1.35.4"
MODULE = Path(__file__).with_name("go.mod")

PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
}
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
ASSETS = ("etcd", "kube-apiserver", "kubectl")  # what KUBEBUILDER_ASSETS holds by convention


@dataclass(frozen=True)
class Binaries:
    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def has(self, *names: str) -> bool:
        return all(os.access(self.path(name), os.X_OK) for name in names)


def find_or_build(progress: Progress, *, node: bool) -> Binaries:
    """Look in KUBEBUILDER_ASSETS (for a control plane alone), then in our cache, else build."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not node:
        found = Binaries(Path(assets))
        if missing := [name for name in ASSETS if not found.has(name)]:
            raise ClusterError(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}")
        return found
    cached = Binaries(cached_folder())
    if not cached.has(*PACKAGES):
        _build(cached.folder, progress)
    return cached


def cached_folder() -> Path:
    digest = hashlib.sha256(MODULE.read_bytes()).hexdigest()[:8]
    return cache_root() / "kubernetes" / f"{VERSION}-{digest}"


def _build(folder: Path, progress: Progress) -> None:
    go = suitable_go(MODULE, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second builder waits for the first
        if Binaries(folder).has(*PACKAGES):
            return
        progress(f"building Kubernetes {VERSION} with {go}; about 15 minutes on two cores, once")
        # Elsewhere until all is built: an interrupted build is never taken for a whole one.
        building = folder.with_name(f"{folder.name}.building")
        for leftover in (building, folder):
            shutil.rmtree(leftover, ignore_errors=True)
        started = time.monotonic()
        for number, (name, package) in enumerate(PACKAGES.items(), 1):
            progress(f"[{number}/{len(PACKAGES)}] {name} (at {time.monotonic() - started:.0f} s)")
            try:
                build(MODULE.parent, package, building / name, progress, _linker_flags())
            except GoError as error:
                raise ClusterError(str(error)) from error
        building.rename(folder)
        progress(f"built in {time.monotonic() - started:.0f} s: {folder}")


def _linker_flags() -> Sequence[str]:
    major, minor, _ = VERSION.removeprefix("v").split(".")
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor,
              "gitTreeState": "archive"}  # fmt: skip
    flags = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    # Clients send this one as their user agent.
    return [*flags, f"-X k8s.io/client-go/pkg/version.gitVersion={VERSION}"]
