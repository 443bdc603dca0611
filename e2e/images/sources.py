"""What the images are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
COMPONENTS = {
    "operator": "operator/promptprefix_operator",
    "sidecar": "sidecar/promptprefix_sidecar",
    "router": "router/promptprefix_router",
    "plugin": "engine/promptprefix_vllm",
}
FILES = (".dockerignore", "LICENSE", "README.md", "pyproject.toml")
FOLDERS = ("images", "core/promptprefix", *COMPONENTS.values())


def containerfile(component: str) -> Path:
    """Return a component's Containerfile, relative to the build context."""
    return Path(COMPONENTS[component]).parent / "Containerfile"


@dataclass(frozen=True)
class Sources:
    """The build context in memory: what is built is what was hashed, whoever edits meanwhile."""

    files: dict[str, bytes]

    @classmethod
    def read(cls, checkout: Path = CHECKOUT) -> Sources:
        """Read the files that the Containerfiles copy, and those themselves."""
        names = [*FILES, *(str(containerfile(component)) for component in COMPONENTS)]
        for folder in FOLDERS:
            names += _files(checkout, folder)
        return cls({name: (checkout / name).read_bytes() for name in sorted(names)})

    def key(self, *others: str) -> str:
        """Return a short digest of all files and of ``others``."""
        digest = hashlib.sha256()
        for name, content in self.files.items():
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
        for other in others:
            digest.update(f"{other}\n".encode())
        return digest.hexdigest()[:12]

    def write(self, folder: Path) -> None:
        """Write the build context."""
        for name, content in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def _files(checkout: Path, folder: str) -> Iterator[str]:
    for path in (checkout / folder).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(checkout))
