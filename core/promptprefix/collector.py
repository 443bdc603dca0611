"""The garbage collector of the process, which waits while much is made that lasts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting() -> Iterator[None]:
    """Let the collector wait; it would look through all that is made again and again.

    Where it is switched off, it stays so.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
