"""Takes what lives long out of the garbage collector's sight: else some requests wait for it."""

from __future__ import annotations

import gc

_GROWTH = 1.25
_FEW = 100


class LongLived:
    """One set of tables. What is replaced is freed as ever: these have no cycles."""

    def __init__(self) -> None:
        self._size = 0

    def grew(self, size: int) -> None:
        """Take note that the tables have so many entries now; they are set aside if that is news.

        Not each time: a cycle that is garbage already is set aside with them for ever.
        """
        if size > self._size * _GROWTH + _FEW:
            self._size = size
            gc.collect(1)
            gc.freeze()
