"""What can be done next, by lane, and how often.

Three lanes act side by side. *Keep* holds pins (report, renew, unpin, evict), short and on time;
*touch* holds soft pins, whose requests wait their turn in a busy engine; *warm* brings what is
missing (prepare, warm) and moves what is released (offload), long and one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(frozen=True)
class Policy:
    """Intervals in seconds. Requests of users go first for at most ``soft_wait_s``.

    One request of a warm-up computes at most ``warm_chunk_tokens``, so that users wait no longer.
    """

    lease_s: int = 120
    report_interval_s: float = 10.0
    touch_interval_s: float = 30.0
    digest_check_interval_s: float = 300.0
    soft_wait_s: float = 30.0
    warm_chunk_tokens: int = 1024


@dataclass(frozen=True)
class Report:
    """Ask the plugin for its epoch and all pins."""


@dataclass(frozen=True)
class Renew:
    """Renew the leases of these pins; each with the priority that is wanted."""

    pins: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Unpin:
    """Give up a pin that no wanted placement needs."""

    pin_id: str


@dataclass(frozen=True)
class Evict:
    """Give up a pin and drop its blocks from the cache, but those that other pins hold.

    ``id`` is the placement's, empty if none is to hear of it.
    """

    id: str
    pin_id: str


@dataclass(frozen=True)
class Touch:
    """Use a soft pin, so that it is recent, and see whether it was still there."""

    id: str


@dataclass(frozen=True)
class Prepare:
    """Find the tokens of a placement, for the first time or again."""

    id: str


@dataclass(frozen=True)
class Warm:
    """Prefill a placement and prove that it is resident; with a pin if ``hard``."""

    id: str
    hard: bool


@dataclass(frozen=True)
class Offload:
    """Drop a placement from GPU memory once the engine's offload tier has shown its copy."""

    id: str


KeepAction = Report | Renew | Unpin | Evict
WarmAction = Prepare | Warm | Offload
A = TypeVar("A", KeepAction, Touch, WarmAction)


@dataclass(frozen=True)
class Due(Generic[A]):
    """An action and the time from which it may run; the earliest in the list goes first."""

    at: float
    action: A
