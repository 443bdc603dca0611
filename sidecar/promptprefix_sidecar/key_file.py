"""The key that signs engine commands: a file in a memory volume, one per pod."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from promptprefix.pin_command import MIN_KEY_BYTES

KEY_MODE = 0o444
"""Readable by everybody who sees the volume, and only our containers and the engine mount it.

The user of the engine's container is unknown: root, an image's own, with a group of ours or not.
"""


class KeyFileError(Exception):
    """The key can't be read or is too short; the message names the file and the fix."""


def read_key(path: Path) -> bytes:
    """Return the key; raise `KeyFileError`."""
    try:
        key = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"the key {path} can't be read: {error.strerror}") from error
    if len(key) < MIN_KEY_BYTES:
        raise KeyFileError(
            f"the key {path} has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed: "
            "delete it and restart the pod"
        )
    return key


def ensure_key(path: Path) -> bool:
    """Write a new random key unless a good one is there; return whether one was written.

    The file appears whole or not at all, so that an engine that starts meanwhile never reads half
    a key.
    """
    try:
        read_key(path)
    except KeyFileError:
        _write_key(path)
        return True
    path.chmod(KEY_MODE)
    return False


def _write_key(path: Path) -> None:
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), KEY_MODE)
            file.write(secrets.token_bytes(MIN_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
