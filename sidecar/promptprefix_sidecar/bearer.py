"""Bearer credentials. Those in files are read at every request: renewed ones count at once."""

from __future__ import annotations

import re
from pathlib import Path

_CREDENTIAL = re.compile(rb"[!-~]+")
"""Printable ASCII without blanks. HTTP libraries quote any other in their errors."""


class BearerError(Exception):
    """There is no usable credential; the message names its source and never quotes it."""


def authorization(path: Path) -> str:
    """Return the header's value for the credential in a file; raise `BearerError`."""
    try:
        return bearer(path.read_bytes(), str(path))
    except OSError as error:
        raise BearerError(f"{path} can't be read: {error.strerror}") from error


def bearer(credential: bytes, source: str) -> str:
    """Return the header's value for a credential; raise `BearerError` that names ``source``."""
    stripped = credential.strip()
    if not _CREDENTIAL.fullmatch(stripped):
        raise BearerError(f"{source} must hold one line of printable ASCII without blanks")
    return f"Bearer {stripped.decode('ascii')}"
