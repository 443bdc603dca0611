"""vLLM's environment and the model as pods see them: folders of the node, mounted read-only.

The restricted Pod Security Standard forbids hostPath in pods, so each comes as a PersistentVolume
that only a cluster administrator can make.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.engine.environment import Environment

_ENGINE, _MODEL = "/opt/vllm", "/opt/model"


@dataclass(frozen=True)
class Folders:
    """Where the pods find what is mounted."""

    namespace: str
    environment: Environment
    model_folder: Path

    @property
    def model(self) -> str:
        return _MODEL

    @property
    def site_packages(self) -> str:
        return f"{_ENGINE}/{self.environment.site_packages.relative_to(self._base)}"

    @property
    def vllm_cache(self) -> str:
        return f"{_ENGINE}/{self.environment.vllm_cache.relative_to(self._base)}"

    @property
    def _base(self) -> Path:
        return self.environment.vllm_cache.parent

    def volumes(self) -> list[dict[str, Any]]:
        """Return the pods' volumes."""
        return [
            {"name": name, "persistentVolumeClaim": {"claimName": _claim(path), "readOnly": True}}
            for name, _, path in self._each()
        ]

    def mounts(self) -> list[dict[str, Any]]:
        """Return the engine's mounts."""
        return [
            {"name": name, "mountPath": place, "readOnly": True} for name, place, _ in self._each()
        ]

    def objects(self) -> Iterator[dict[str, Any]]:
        """Return the volumes and claims."""
        for _, _, path in self._each():
            claim = {"namespace": self.namespace, "name": _claim(path)}
            volume = f"{self.namespace}-{_claim(path)}"
            yield {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadOnlyMany"],
                    "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(path), "type": "Directory"},
                    "claimRef": claim,
                },
            }
            yield {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": claim,
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "storageClassName": "",
                    "volumeName": volume,
                    "resources": {"requests": {"storage": "10Gi"}},
                },
            }

    def _each(self) -> Iterator[tuple[str, str, Path]]:
        yield "vllm", _ENGINE, self._base
        yield "model", _MODEL, self.model_folder


def _claim(path: Path) -> str:
    """Return the claim's name: volumes can't be changed, only replaced."""
    return f"folder-{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
