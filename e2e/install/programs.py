"""kubectl and helm against one cluster, as a user runs them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ProgramError(Exception):
    """A program failed; the message holds what it said."""


@dataclass(frozen=True)
class Program:
    """A command with the options that name the cluster."""

    command: tuple[str, ...]

    def __call__(self, *arguments: str, input: str | None = None, timeout: float = 120) -> str:
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                input=input,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramError(f"{self._name} {' '.join(arguments)}: {error}") from None
        if done.returncode:
            said = f"{done.stderr.strip()}\n{done.stdout.strip()}"
            raise ProgramError(f"{self._name} {' '.join(arguments)}: {said.strip()}")
        return done.stdout

    @property
    def _name(self) -> str:
        return Path(self.command[0]).name


@dataclass(frozen=True)
class Kubectl(Program):
    """kubectl."""

    def read(self, *arguments: str) -> dict[str, Any]:
        """Return the object or list that ``kubectl get`` prints."""
        return dict(json.loads(self("get", *arguments, "-o", "json")))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply the objects server-side."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "--server-side", "-f", "-", input=json.dumps(listed))

    def python(self, namespace: str, pod: str, container: str, script: str) -> str:
        """Run a Python script in a container and return what it prints."""
        return self("exec", "-n", namespace, pod, "-c", container, "--", "python3", "-c", script)


@dataclass(frozen=True)
class Helm(Program):
    """helm."""

    def apply(
        self,
        action: str,
        release: str,
        chart: Path,
        namespace: str,
        values: Mapping[str, Any],
        *,
        wait: bool = True,
    ) -> None:
        """Install or upgrade; wait until the objects are ready."""
        self(
            *(action, release, str(chart), "--namespace", namespace, "--values", "-"),
            *(("--wait", "--timeout", "5m") if wait else ()),
            input=json.dumps(values),
            timeout=330,
        )


def kubectl_of(program: str, cluster: Sequence[str]) -> Kubectl:
    """Return kubectl for the cluster that the options name."""
    return Kubectl((program, *cluster))
