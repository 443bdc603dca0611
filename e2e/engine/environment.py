"""The engine's own Python environment: vLLM on the CPU, in the user's cache, built once.

``python -m e2e.engine.environment`` builds it and prints where it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
NEEDED_DISK_GIB = 8.0
NEEDED_MEMORY_GIB = 4.0
INSTALL_TIMEOUT_SECONDS = 1800
STAMP = "complete"
HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
TORCH_REQUIREMENTS = HERE / "requirements-torch.txt"
TEST_REQUIREMENTS = HERE / "requirements-test.txt"
QUICK_START = HERE / "quick_start.py"
MODEL_CLASS = HERE / "model_class.py"
QUICK_START_MODULE = "engine_quick_start"

Progress = Callable[[str], None]


class EnvironmentBuildError(RuntimeError):
    """The environment cannot be built here; the message says what is missing."""


@dataclass(frozen=True)
class Environment:
    """folder: all of it. python: its interpreter.

    site_packages: usable by any interpreter of the same minor version. vllm_cache: facts about
    model classes that vLLM otherwise finds out by importing itself once more.
    """

    folder: Path
    python: Path
    site_packages: Path
    vllm_cache: Path


def environment_folder() -> Path:
    inputs = (REQUIREMENTS, TORCH_REQUIREMENTS, TEST_REQUIREMENTS, QUICK_START, MODEL_CLASS)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:12]
    return cache_root() / "vllm" / f"{VLLM_VERSION}-py3.{sys.version_info.minor}-{digest}"


def ensure_environment(progress: Progress) -> Environment:
    """The environment, installed first if it is not there; minutes then, nothing later."""
    folder = environment_folder()
    environment = _describe(folder)
    if (folder / STAMP).is_file():
        return environment
    _check_room(folder.parent)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        # Two test runs may start together; the second waits and finds the work done.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / STAMP).is_file():
            _build(folder, environment, progress)
    return environment


def _describe(folder: Path) -> Environment:
    minor = f"python3.{sys.version_info.minor}"
    return Environment(
        folder=folder,
        python=folder / "bin" / "python",
        site_packages=folder / "lib" / minor / "site-packages",
        vllm_cache=folder / "vllm-cache",
    )


def _check_room(parent: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free / 2**30
    if free < NEEDED_DISK_GIB:
        raise EnvironmentBuildError(
            f"the engine's environment needs {NEEDED_DISK_GIB:g} GiB of disk, "
            f"{free:.1f} GiB are free at {parent} (PROMPTPREFIX_CACHE chooses another place)"
        )
    memory = _available_memory_gib()
    if memory < NEEDED_MEMORY_GIB:
        raise EnvironmentBuildError(
            f"the engine needs {NEEDED_MEMORY_GIB:g} GiB of memory, {memory:.1f} GiB are available"
        )


def _available_memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return float("inf")


def _build(folder: Path, environment: Environment, progress: Progress) -> None:
    """In place, because scripts of a virtual environment hold its path; the stamp comes last."""
    shutil.rmtree(folder, ignore_errors=True)
    progress(f"installing vLLM {VLLM_VERSION} for CPUs into {folder} (about 5 minutes, once)")
    venv.create(folder, with_pip=True)
    _install_torch(environment, progress)
    _step(
        "vLLM and its requirements",
        [*_pip(environment), "-r", str(REQUIREMENTS), "-r", str(TEST_REQUIREMENTS)],
        progress,
    )
    shutil.copyfile(QUICK_START, environment.site_packages / f"{QUICK_START_MODULE}.py")
    compiled = [str(environment.python), "-m", "compileall", "-q", "-j", "0"]
    # Sources for other Python versions are among them; those fail to compile and are never used.
    _step("compiling", [*compiled, str(environment.site_packages)], progress, check=False)
    _step(
        "looking at the model class",
        [str(environment.python), str(MODEL_CLASS)],
        progress,
        variables={"VLLM_CACHE_ROOT": str(environment.vllm_cache)},
    )
    for path in environment.vllm_cache.rglob("*.json"):
        # vLLM makes it private, but containers run as another user.
        path.chmod(0o644)
    (folder / STAMP).touch()


def _install_torch(environment: Environment, progress: Progress) -> None:
    cpu_build = [*_pip(environment), f"torch=={TORCH_VERSION}+cpu"]
    if not _step("torch (CPU build)", cpu_build, progress, check=False):
        ordinary = [*_pip(environment), "-r", str(TORCH_REQUIREMENTS)]
        _step("torch (ordinary build: the index has no CPU build)", ordinary, progress)


def _pip(environment: Environment) -> list[str]:
    return [str(environment.python), "-m", "pip", "install", "--no-deps", "--no-compile", "-q"]


def _step(
    what: str,
    command: Sequence[str],
    progress: Progress,
    *,
    check: bool = True,
    variables: dict[str, str] | None = None,
) -> bool:
    """Runs one command, telling every 20 s that it still runs; says whether it succeeded."""
    started = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(20):
            progress(f"{what}: {time.monotonic() - started:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    finally:
        done.set()
        teller.join()
    succeeded = ended.returncode == 0
    if check and not succeeded:
        raise EnvironmentBuildError(f"{what} failed:\n{(ended.stderr or ended.stdout)[-2000:]}")
    if succeeded:
        progress(f"{what}: done in {time.monotonic() - started:.0f} s")
    return succeeded


if __name__ == "__main__":
    begun = time.monotonic()

    def show(line: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {line}", file=sys.stderr, flush=True)

    print(ensure_environment(show))
