"""Where slow builds are kept: outside the checkout, keyed by version."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return ``$PROMPTPREFIX_CACHE``, else ``promptprefix`` under the user's cache folder."""
    if chosen := os.environ.get("PROMPTPREFIX_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "promptprefix"
