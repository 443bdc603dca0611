"""How long an engine has stood still although a request could run."""

from __future__ import annotations

from typing import Final

STALLED_SECONDS: Final = 5.0
# Steps of an engine that stands still follow each other within milliseconds.
_LONGEST_STEP_SECONDS: Final = 1.0


class StallClock:
    """Told of every step that stood still. ``now`` is in monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = 0.0

    def clear(self) -> None:
        self._since = None

    def stood_still(self, now: float) -> bool:
        """True once the time is up, which then begins anew."""
        if self._since is None or now - self._last > _LONGEST_STEP_SECONDS:
            self._since = now
        self._last = now
        if now - self._since < STALLED_SECONDS:
            return False
        self._since = now
        return True
