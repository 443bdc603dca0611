"""How a client of the control API finds the operator that leads.

Several operators stand behind one Service and one of them leads; the others answer
`STANDBY_STATUS`. Every new connection lets the Service pick again, so the client dials anew: at
once at first, since each dial may just have had bad luck, then with short pauses.
"""

from __future__ import annotations

from promptprefix.wire import LONG_POLL_S

CONNECT_TIMEOUT_S = 3.0
"""Seconds for a connection: an operator whose node is gone must not hold up the next dial."""

ANSWER_TIMEOUT_S = LONG_POLL_S + 5.0
"""Seconds of silence after which an operator is taken for dead; it answers within `LONG_POLL_S`."""

MAX_BACKOFF_S = 10.0
"""Longest pause in seconds after an error."""

REDIALS_AT_ONCE = 3
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
OUTAGE = 8
"""So many standbys in a row mean that nobody leads; chance alone does it once in 256 times."""


def redial_pause(standbys: int, jitter: float) -> float:
    """Return the seconds to wait after this many standbys in a row; ``jitter`` is in [0, 1)."""
    if standbys <= REDIALS_AT_ONCE:
        return 0.0
    doublings = min(standbys - REDIALS_AT_ONCE - 1, 16)
    return float(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**doublings) * (0.5 + jitter / 2))


def nobody_leads(standbys: int) -> bool:
    """Return whether so many standbys in a row are worth an error."""
    return standbys >= OUTAGE
