"""CRDs of other projects whose objects our charts render, from the modules that hold them.

Versions and checksums stand in go.mod and go.sum; the files stay in Go's module cache.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from e2e import go

_MODULE = Path(__file__).parent

_FILES = {
    "github.com/cert-manager/cert-manager": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
    "sigs.k8s.io/gateway-api-inference-extension": (
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
}


def definitions(progress: go.Progress) -> tuple[Path, ...]:
    """Return the files of cert-manager's, Prometheus' and the inference extension's kinds.

    Apply them server-side: some are too large for the annotation of a client-side apply. Raises
    `GoError` where a module can't be had or is not the one of go.sum.
    """
    folders = _download(progress)
    files = tuple(folders[module] / name for module, names in _FILES.items() for name in names)
    if missing := [str(file) for file in files if not file.exists()]:
        raise go.GoError(f"not in the pinned modules: {', '.join(missing)}")
    return files


def _download(progress: go.Progress) -> dict[str, Path]:
    """Return the folder of each module in Go's module cache."""
    tool = str(go.suitable_go(_MODULE / "go.mod", progress))
    settings = {"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    required = subprocess.run(
        [tool, "mod", "edit", "-json"],
        cwd=_MODULE, env=os.environ | settings, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    pinned = [f"{each['Path']}@{each['Version']}" for each in json.loads(required)["Require"]]
    done = subprocess.run(
        [tool, "mod", "download", "-json", *pinned],
        cwd=_MODULE, env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = _values(done.stdout)
    if errors := [each["Error"] for each in found if each.get("Error")]:
        raise go.GoError("\n".join(errors))
    if done.returncode:
        raise go.GoError(done.stderr.strip())
    return {each["Path"]: Path(each["Dir"]) for each in found}


def _values(text: str) -> list[dict[str, str]]:
    """Return the JSON values that stand one after another in ``text``."""
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found
