"""The real Helm, built from its Go module."""

from __future__ import annotations

import re
from pathlib import Path

from e2e import go

_MODULE = Path(__file__).parent
_VERSION = re.compile(r"^require helm\.sh/helm/v4 (v\S+)$", re.MULTILINE)


def find_or_build(progress: go.Progress) -> Path:
    """Return the ``helm`` program; the first build takes about four minutes on two cores."""
    version = _VERSION.search((_MODULE / "go.mod").read_text())
    if version is None:
        raise go.GoError(f"{_MODULE / 'go.mod'} requires no helm.sh/helm/v4")
    flags = [f"-X helm.sh/helm/v4/internal/version.version={version[1]}"]
    package = "helm.sh/helm/v4/cmd/helm"
    return go.find_or_build("helm", _MODULE, package, progress, linker_flags=flags)
