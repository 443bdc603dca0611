"""Bearer credentials, read from their files at every request: renewed ones count at once."""

from __future__ import annotations

import re
from pathlib import Path

_CREDENTIAL = re.compile(rb"[!-~]+")
"""Printable ASCII without blanks. HTTP libraries quote any other in their errors."""


class BearerError(Exception):
    """The file gives no credential; the message names the file and never quotes it."""


def authorization(path: Path) -> str:
    """Return the header's value for the credential in a file; raise `BearerError`."""
    try:
        credential = path.read_bytes().strip()
    except OSError as error:
        raise BearerError(f"{path} can't be read: {error.strerror}") from error
    if not _CREDENTIAL.fullmatch(credential):
        raise BearerError(f"{path} must hold one line of printable ASCII without blanks")
    return f"Bearer {credential.decode('ascii')}"
