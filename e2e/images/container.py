"""An image's files, run the way a pod under the restricted profile runs them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.images.layout import Configuration, Image

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# $1: root, $2: user and group; then a pair for each volume, "--", and the command.
SCRIPT = """
set -e
root=$1 user=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
[ ! -d "$root/tmp" ] || mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
exec chroot --userspec="$user" --groups= "$root" "$@"
"""


@dataclass(frozen=True)
class Container:
    """An unpacked image: read-only but for /tmp and volumes, run as its own user."""

    root: Path
    configuration: Configuration
    volumes: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def unpack(cls, image: Image, root: Path, **volumes: Path) -> Container:
        """Write the image's files; a volume ``name`` is mounted at ``/name``."""
        image.unpack(root)
        for name in volumes:
            (root / name).mkdir()
        return cls(root, image.configuration, {f"/{name}": path for name, path in volumes.items()})

    def run(
        self, *arguments: str, entrypoint: tuple[str, ...] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the image's entry point, or another, to its end."""
        mounts = [part for target, path in self.volumes.items() for part in (str(path), target)]
        command = entrypoint or self.configuration.entrypoint
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(self.root),
             self.configuration.user, *mounts, "--", *command, *arguments],
            capture_output=True, text=True, check=False, timeout=60,
            env={"PATH": DEFAULT_PATH} | self.configuration.environment,
        )  # fmt: skip
