"""What lies in an OCI archive."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE = "org.opencontainers.image.ref.name"
CONTAINERD_NAME = "io.containerd.image.name"
WHITEOUT = ".wh."


@dataclass(frozen=True)
class Configuration:
    """What an image says about how it is run."""

    user: str
    entrypoint: tuple[str, ...]
    environment: dict[str, str]
    labels: dict[str, str]


@dataclass(frozen=True)
class Image:
    """One image of an archive, with its uncompressed layers."""

    archive: Path
    configuration: Configuration
    layers: tuple[str, ...]

    @classmethod
    def read(cls, archive: Path, name: str) -> Image:
        """Read the image's configuration; raise `KeyError` if the archive has no such image."""
        with tarfile.open(archive) as tar:
            index = _json(tar, "index.json")
            manifests = {item["annotations"][REFERENCE]: item for item in index["manifests"]}
            manifest = _json(tar, blob_path(manifests[name]["digest"]))
            config = _json(tar, blob_path(manifest["config"]["digest"]))["config"]
        configuration = Configuration(
            user=config.get("User", ""),
            entrypoint=tuple(config.get("Entrypoint", ())),
            environment=dict(item.split("=", 1) for item in config.get("Env", ())),
            labels=dict(config.get("Labels") or {}),
        )
        return cls(archive, configuration, tuple(item["digest"] for item in manifest["layers"]))

    def size(self) -> int:
        """Bytes of all layers, uncompressed."""
        with tarfile.open(self.archive) as tar:
            return sum(tar.getmember(blob_path(layer)).size for layer in self.layers)

    def unpack(self, folder: Path) -> None:
        """Write the image's files, with their owners and modes."""
        with tarfile.open(self.archive) as tar:
            for layer in self.layers:
                with tarfile.open(fileobj=tar.extractfile(blob_path(layer))) as files:
                    names = files.getnames()
                    assert not any(Path(name).name.startswith(WHITEOUT) for name in names)
                    files.extractall(folder, filter="fully_trusted")  # noqa: S202 - built here


def blob_path(digest: str) -> str:
    """Return where an archive holds a blob."""
    return f"blobs/{digest.replace(':', '/')}"


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file, name
    return json.load(file)
