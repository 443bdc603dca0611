"""buildah as root, with its storage, its run files and its temporary files in folders of ours."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

# A fixed path, where buildah takes notes of copies. Here it lies in a file system of the command's
# own, which ends with it, as all its mounts do.
NOTES = Path("/var/lib/containers")
SCRIPT = f'mount -t tmpfs tmpfs {NOTES} && exec "$@"'
TAIL = 30  # lines of a failed build


@dataclass(frozen=True)
class Buildah:
    """Runs one buildah command after the other; ``temporary`` may go when the last has ended."""

    storage: Path
    temporary: Path

    def run(self, *arguments: str, timeout: float) -> str:
        """Return what the command prints; raise `ClusterError` with the end of its complaint."""
        NOTES.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", "buildah",
                   "--storage-driver=overlay", f"--root={self.storage / 'layers'}",
                   f"--runroot={self.temporary / 'run'}"]  # fmt: skip
        try:
            done = subprocess.run(
                [*command, *arguments],
                capture_output=True, text=True, check=False, timeout=timeout,
                stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(self.temporary)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"buildah {arguments[0]} did not end within {timeout:.0f} s"
            ) from None
        if done.returncode:
            lines = [*done.stdout.splitlines(), *done.stderr.splitlines()][-TAIL:]
            raise ClusterError("\n".join([f"buildah {' '.join(arguments)} failed:", *lines]))
        return done.stdout

    def pull(self, archive: Path, name: str) -> None:
        """Take an image out of an OCI archive, under the name it has there."""
        self.run("pull", "--quiet", f"oci-archive:{archive}:{name}", timeout=120)

    def build(self, context: Path, file: Path, name: str, *options: str) -> None:
        """Build ``name`` from a Containerfile; what earlier builds did alike is taken from them."""
        self.run(
            "build", "--isolation=chroot", "--layers", "--pull-never", "--quiet",
            f"--file={file}", f"--tag={name}", *options, str(context), timeout=900,
        )  # fmt: skip

    def push(self, name: str, folder: Path) -> None:
        """Write an image into a folder, its layers not compressed."""
        self.run("push", "--quiet", "--disable-compression", name, f"dir:{folder}", timeout=300)
