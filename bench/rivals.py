"""The other routers, from the package index: in environments of their own, built once."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root

INSTALL_S = 600
_STAMP = "complete"


@dataclass(frozen=True)
class Rival:
    """A router that learns by itself which engine has seen which text."""

    name: str
    version: str
    arguments: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Its environment, in the user's cache."""
        minor = sys.version_info.minor
        return cache_root() / "rivals" / f"{self.name}-{self.version}-py3.{minor}"

    def install(self) -> None:
        """Install it unless it is there. Raises `CalledProcessError`."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self.folder.with_name(f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (self.folder / _STAMP).is_file():
                return
            print(f"installing {self.name} {self.version} in {self.folder}", file=sys.stderr)
            shutil.rmtree(self.folder, ignore_errors=True)
            venv.create(self.folder, with_pip=True)
            pip = (self.folder / "bin" / "python", "-m", "pip", "install", "-q")
            subprocess.run(
                [*pip, f"{self.name}=={self.version}"],
                check=True,
                timeout=INSTALL_S,
                stdin=subprocess.DEVNULL,
            )
            (self.folder / _STAMP).touch()

    def command(self, port: int, metrics_port: int, engines: Sequence[str]) -> list[str]:
        """Return the command that serves ``engines`` (URLs) on ``port`` of loopback."""
        return [
            *(str(self.folder / "bin" / self.name), *self.arguments),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
            *("--policy", "cache_aware", "--worker-urls", *engines),
        ]


SMG = Rival("smg", "1.13.0", ("launch", "--log-level", "warn"))
VLLM_ROUTER = Rival("vllm-router", "0.1.17", ("--log-level", "warning"))
