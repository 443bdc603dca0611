"""Processes that get a part of the time only, as a CPU limit of Kubernetes does it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

PERIOD_S = 0.1
"""The period in which Linux counts out a quota."""


@contextlib.contextmanager
def starved(pid: int, share: float) -> Iterator[None]:
    """Let a process run for ``share`` of each period until the block ends; 1: all the time."""
    if share >= 1:
        yield
        return
    over = threading.Event()
    hand = threading.Thread(target=_keep, args=(pid, share, over), daemon=True)
    hand.start()
    try:
        yield
    finally:
        over.set()
        hand.join()


def _keep(pid: int, share: float, over: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(PERIOD_S * share):
            os.kill(pid, signal.SIGSTOP)
            over.wait(PERIOD_S * (1 - share))
            os.kill(pid, signal.SIGCONT)
