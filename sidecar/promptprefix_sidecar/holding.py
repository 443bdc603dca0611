"""What the operator said is held while it is away, but not for ever."""

from __future__ import annotations

from dataclasses import replace

from promptprefix_sidecar.desired import with_desired
from promptprefix_sidecar.snapshot import Snapshot


def let_go(snapshot: Snapshot, silent_s: float, hold_s: float) -> Snapshot:
    """Want nothing any more once the operator has been silent for ``hold_s`` seconds; 0: never.

    An operator that was removed leaves no pins behind. The next answer is taken over as any other.
    """
    if snapshot.let_go or not hold_s or silent_s < hold_s:
        return snapshot
    return replace(with_desired(snapshot, ()), let_go=True)
