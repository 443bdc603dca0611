"""A file that Envoy watches: it is replaced whole, and only when its content changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

VERSION_DIGITS = 12


def discovery_response(resource: Mapping[str, object]) -> bytes:
    """Return a file's content with one resource; its version, which Envoy shows, is a digest."""
    resources = msgspec.json.encode([resource])
    version = hashlib.sha256(resources).hexdigest()[:VERSION_DIGITS]
    return b'{"version_info":"%s","resources":%s}\n' % (version.encode(), resources)


class WatchedFile:
    """One file of the folder that is shared with Envoy, which never reads half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        """Return the content, or none if there is no such file. Raises `OSError`."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> bool:
        """Make ``content`` the content; return whether it changed. Raises `OSError`.

        Nothing waits for the disk: who reads has what was written, and the folder is made anew
        with the pod.
        """
        if self.read() == content:
            return False
        temporary = self._path.with_name(f".{self._path.name}.new")
        temporary.write_bytes(content)
        temporary.replace(self._path)
        return True

    def create(self, content: bytes) -> bool:
        """Write ``content`` unless the file exists; return whether it was made."""
        return self.read() is None and self.write(content)
