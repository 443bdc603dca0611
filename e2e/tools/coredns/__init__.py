"""The real CoreDNS with the few plugins that the cluster needs, built from its Go module."""

from __future__ import annotations

from pathlib import Path

from e2e import go

_MODULE = Path(__file__).parent


def find_or_build(progress: go.Progress) -> Path:
    """Return the ``coredns`` program; the first build takes about four minutes on two cores."""
    return go.find_or_build("coredns", _MODULE, ".", progress, sources=[_MODULE / "main.go"])
