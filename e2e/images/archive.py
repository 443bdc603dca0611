"""One OCI archive of several images, from what ``buildah push … dir:`` wrote for each of them.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.images.layout import CONTAINERD_NAME, REFERENCE, blob_path

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


@dataclass
class ArchiveWriter:
    """Collects images. ``compressed`` keeps the layers between builds: few of them ever change."""

    compressed: Path
    manifests: list[dict[str, Any]] = field(default_factory=list)
    small: dict[str, bytes] = field(default_factory=dict)
    layers: dict[str, Path] = field(default_factory=dict)
    used: set[Path] = field(default_factory=set)

    def add(self, name: str, pushed: Path) -> None:
        """Take one image, with its layers not compressed."""
        manifest = json.loads((pushed / "manifest.json").read_text())
        config = manifest["config"]["digest"]
        self.small[config] = (pushed / _hex(config)).read_bytes()
        manifest["layers"] = [self._layer(pushed, item["digest"]) for item in manifest["layers"]]
        data = json.dumps(manifest, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.small[digest] = data
        names = {REFERENCE: name, CONTAINERD_NAME: name}
        self.manifests.append({"mediaType": MANIFEST_TYPE, "digest": digest, "size": len(data),
                               "annotations": names})  # fmt: skip

    def write(self, archive: Path) -> None:
        """Write the archive, and forget the layers that it does not hold."""
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": self.manifests}
        with tarfile.open(archive, "w") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            _add(tar, "index.json", json.dumps(index).encode())
            for digest, data in self.small.items():
                _add(tar, blob_path(digest), data)
            for digest, file in self.layers.items():
                tar.add(file, blob_path(digest))
        for file in set(self.compressed.iterdir()) - self.used:
            file.unlink()

    def _layer(self, pushed: Path, digest: str) -> dict[str, object]:
        file = self.compressed / _hex(digest)
        self.compressed.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            unfinished = file.with_suffix(".part")
            # No name and no time inside: the same layer gives the same bytes.
            with (
                (pushed / file.name).open("rb") as source,
                unfinished.open("wb") as target,
                gzip.GzipFile("", "wb", compresslevel=1, fileobj=target, mtime=0) as zipped,
            ):
                shutil.copyfileobj(source, zipped, 2**20)
            unfinished.rename(file)
        with file.open("rb") as opened:
            short = f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        self.layers[short] = file
        self.used.add(file)
        return {"mediaType": LAYER_TYPE, "digest": short, "size": file.stat().st_size}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
