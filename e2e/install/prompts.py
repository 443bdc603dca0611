"""A repository of prompts as a GitOps tool applies it: kustomize makes the ConfigMap's name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from e2e.install.programs import Kubectl
from e2e.install.workloads import prompt_prefix

ROOT = Path(__file__).resolve().parents[2]
KUSTOMIZE_CONFIG = ROOT / "examples" / "gitops" / "prompts" / "base" / "kustomizeconfig.yaml"
NAME = "support"


class Prompts:
    """The repository's folder."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self._folder = folder
        folder.mkdir()
        shutil.copy(KUSTOMIZE_CONFIG, folder / "kustomizeconfig.yaml")
        self._write(
            "kustomization.yaml",
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "namespace": namespace,
                "resources": ["prefix.yaml"],
                "configurations": ["kustomizeconfig.yaml"],
                "configMapGenerator": [
                    {"name": NAME, "files": ["systemInstructions=system.md"]},
                ],
            },
        )
        self._write("prefix.yaml", prompt_prefix(NAME, {"configMapRef": {"name": NAME}}))

    def commit(self, kubectl: Kubectl, system: str) -> None:
        """Change the text and apply the repository, as a GitOps tool does after a push."""
        (self._folder / "system.md").write_text(system)
        kubectl("apply", "--server-side", "-k", str(self._folder))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self._folder / name).write_text(json.dumps(content, indent=1))
