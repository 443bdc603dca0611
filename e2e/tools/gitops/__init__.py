"""What Flux (kstatus) and Argo CD make of objects, by their own libraries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import go

_MODULE = Path(__file__).parent


@dataclass(frozen=True)
class Judgement:
    """One tool's word on one object."""

    name: str
    status: str
    message: str


class GitOpsStatus:
    """The program ``gitops-status``, built from this folder."""

    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def find_or_build(cls, progress: go.Progress) -> GitOpsStatus:
        """Return the program; the first build takes minutes where Kubernetes was not built."""
        sources = _MODULE.glob("*.go")
        return cls(go.find_or_build("gitops-status", _MODULE, ".", progress, sources=sources))

    def kstatus(self, objects: Iterable[Mapping[str, Any]]) -> list[Judgement]:
        """Return the status of each object by the rules of kstatus."""
        return self._judge(objects, "kstatus")

    def argo(self, objects: Iterable[Mapping[str, Any]], script: Path) -> list[Judgement]:
        """Return the health of each object by a script, run as Argo CD runs it."""
        return self._judge(objects, "argo", str(script))

    def _judge(self, objects: Iterable[Mapping[str, Any]], *arguments: str) -> list[Judgement]:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        done = subprocess.run(
            [str(self._program), *arguments],
            input=json.dumps(items), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"gitops-status: {done.stderr.strip()}")
        return [Judgement(**json.loads(line)) for line in done.stdout.splitlines()]
