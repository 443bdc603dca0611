"""What of the process's memory goes back to the system."""

from __future__ import annotations

import ctypes

LARGE_BYTES = 4 * 1_048_576
"""More than any body has by default: what comes and goes all the time is kept."""

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def give_back_large() -> None:
    """Let whatever is large leave the process as soon as it is freed; glibc alone can.

    Else glibc keeps the room of tables that have grown out of it, and where the next one does not
    fit in, takes more: the memory of a picker rises by some 20 MB again, hours after it was full.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
    # Where it is left to itself glibc keeps twice as much of a free end.
    mallopt(_TRIM_THRESHOLD, 2 * LARGE_BYTES)
