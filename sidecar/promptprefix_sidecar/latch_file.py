"""Remembers across restarts of the sidecar's container which engine has been let into service.

The file lies in an ``emptyDir``, which lives as long as the pod.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from promptprefix_sidecar.readiness import Readiness

log = structlog.get_logger()


class _Latch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    boot: str
    epoch: str = ""
    failed_open: bool = False


class LatchFile:
    """Neither method raises: without the file a restarted sidecar waits as beside a new engine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: _Latch | None = None

    def read(self) -> Readiness:
        """Return what is remembered; it counts for an engine of the same boot only."""
        try:
            latch = _Latch.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return Readiness()
        return Readiness(
            boot=latch.boot, epoch=latch.epoch, latched=True, failed_open=latch.failed_open
        )

    def write(self, readiness: Readiness) -> None:
        """Remember an open latch, once."""
        latch = _Latch(
            boot=readiness.boot, epoch=readiness.epoch, failed_open=readiness.failed_open
        )
        if not readiness.latched or latch == self._written:
            return
        self._written = latch
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            draft.write_text(latch.model_dump_json())
            draft.replace(self._path)
        except OSError as error:
            log.warning("latch not remembered", path=str(self._path), problem=error.strerror)
