"""Builds the images that the install suite puts on its node."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root
from e2e.cluster import host
from e2e.cluster import image as python_image
from e2e.cluster.binaries import Progress
from e2e.images.archive import ArchiveWriter
from e2e.images.bases import PACKAGES, Bases
from e2e.images.buildah import Buildah
from e2e.images.pip_configuration import PipConfiguration
from e2e.images.sources import COMPONENTS, Sources, containerfile

KEPT_ARCHIVES = 2
STORAGE_LIMIT = 4 * 2**30  # bytes of layers, with those that only later builds use


@dataclass(frozen=True)
class Images:
    """Names of the images, and the OCI archive that holds them all."""

    operator: str
    sidecar: str
    router: str
    plugin: str
    envoy: str
    archive: Path

    @classmethod
    def named(cls, key: str, archive: Path) -> Images:
        """Return the names that belong to a key."""
        prefix = "localhost/promptprefix"
        names = {name: f"{prefix}/{name}:{key}" for name in (*COMPONENTS, "envoy")}
        return cls(**names, archive=archive)

    def name(self, component: str) -> str:
        """Return the image of ``operator``, ``sidecar``, ``router``, ``plugin`` or ``envoy``."""
        return str(getattr(self, component))


def build_images(progress: Progress) -> Images:
    """Return the images of the checkout as it is; build them unless they lie in the cache.

    Needs root and Debian's packages of `PACKAGES`, which are installed when missing. Raises
    `ClusterError`.
    """
    host.ensure_packages(progress, PACKAGES)
    sources = Sources.read()
    bases = Bases.describe(python_image.find_or_build(progress))
    ours = sorted(file for file in Path(__file__).parent.iterdir() if file.is_file())
    key = sources.key(bases.key, *(file.read_text() for file in ours))
    folder = cache_root() / "images"
    images = Images.named(key, folder / f"images-{key}.tar")
    if images.archive.exists():
        return images
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second builder waits for the first
        if not images.archive.exists():
            for leftover in folder.glob("making-*"):  # of a build that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            _build(sources, bases, images, progress)
            _drop_old(folder)
    return images


def _build(sources: Sources, bases: Bases, images: Images, progress: Progress) -> None:
    started = time.monotonic()
    folder = images.archive.parent
    storage = folder / "storage"
    if storage.exists() and _size(storage) > STORAGE_LIMIT:
        shutil.rmtree(storage)
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as made:
        temporary = Path(made)
        buildah = Buildah(storage, temporary)
        bases.make(buildah, temporary)
        context = temporary / "context"
        sources.write(context)
        options = _options(sources, temporary)
        for component in COMPONENTS:
            begin = time.monotonic()
            bases_of = {
                "BUILD_IMAGE": bases.build,
                "RUNTIME_IMAGE": bases.busybox if component == "plugin" else bases.python.python,
            }
            arguments = [f"--build-arg={name}={value}" for name, value in bases_of.items()]
            file = context / containerfile(component)
            buildah.build(context, file, images.name(component), *arguments, *options)
            progress(f"image of the {component}: {time.monotonic() - begin:.0f} s")
        bases.make_envoy(buildah, temporary, images.envoy)
        writer = ArchiveWriter(storage / "compressed")
        for component in (*COMPONENTS, "envoy"):
            pushed = temporary / f"pushed-{component}"
            buildah.push(images.name(component), pushed)
            writer.add(images.name(component), pushed)
        writer.write(temporary / "archive")
        (temporary / "archive").rename(images.archive)
    progress(f"all images after {time.monotonic() - started:.0f} s: {images.archive}")


def _options(sources: Sources, temporary: Path) -> list[str]:
    """Return what each build gets: its version, and the way to the package index."""
    pip = PipConfiguration.of_this_machine()
    file = temporary / "pip.conf"
    file.touch(mode=0o600)
    file.write_text(pip.text)
    version = tomllib.loads(sources.files["pyproject.toml"].decode())["project"]["version"]
    volumes = [f"--volume={path}:{path}:ro" for path in pip.paths]
    labels = [f"--label=org.opencontainers.image.version={version}"]
    return [f"--secret=id=pip,src={file}", *labels, *volumes]


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*"))


def _drop_old(folder: Path) -> None:
    archives = sorted(folder.glob("images-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in archives[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
