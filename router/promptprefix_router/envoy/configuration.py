"""What pieces of Envoy's configuration have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

EnvoyConfig: TypeAlias = dict[str, Any]
"""A piece of Envoy's configuration, as its JSON form."""


def watched(path: Path) -> EnvoyConfig:
    """Return a source of configuration: the file ``path``, read again whenever it is replaced."""
    return {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}
