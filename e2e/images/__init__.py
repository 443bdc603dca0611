"""The project's images, built from their Containerfiles on this machine's own files as bases."""

from e2e.images.build import Images, build_images

__all__ = ["Images", "build_images"]
