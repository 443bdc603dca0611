"""What the engine plugin answers, and the picture of all pins that answers add up to."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from promptprefix.wire import MAX_COUNT

MAX_OWNER_CHARS = 128
_DIGEST_CHARS = 64


class PinReason(StrEnum):
    """Words of the plugin: why it refused a command or gave up a pin."""

    BAD_MAC = "BadMac"
    NO_KEY = "NoKey"
    REPLAYED = "Replayed"
    EXPIRED = "Expired"
    WRONG_EPOCH = "WrongEpoch"
    UNKNOWN_PIN = "UnknownPin"
    UNKNOWN_VERSION = "UnknownVersion"
    UNSUPPORTED = "Unsupported"
    BUDGET_EXCEEDED = "BudgetExceeded"
    TOO_MANY_PINS = "TooManyPins"
    PRESSURE_VALVE = "PressureValve"
    LEASE_EXPIRED = "LeaseExpired"
    CACHE_RESET = "CacheReset"
    UNPINNED = "Unpinned"
    EVICTED = "Evicted"
    ADAPTER_CHANGED = "AdapterChanged"


ORDERED = frozenset({PinReason.UNPINNED, PinReason.EVICTED, PinReason.ADAPTER_CHANGED})
"""Ends of a pin that took nothing from anybody: no premature evictions."""

NO_COMMANDS = frozenset(
    {
        PinReason.BAD_MAC,
        PinReason.NO_KEY,
        PinReason.EXPIRED,
        PinReason.REPLAYED,
        PinReason.UNKNOWN_VERSION,
        PinReason.UNSUPPORTED,
    }
)
"""Refusals that hold for every command, not for one prefix."""


Amount = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class PinView(BaseModel):
    """One pin as the engine sees it: times in seconds, sizes in tokens."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    tokens: Amount = 0
    resident_tokens: Amount = 0
    pinned_tokens: Amount = 0
    lease_left_s: Seconds = 0.0
    priority: int = 0
    hits: Amount = 0
    last_hit_age_s: Seconds | None = None
    matches: Amount = 0
    last_match_age_s: Seconds | None = None
    released_reason: str = ""

    @property
    def whole(self) -> bool:
        """Whether every token is cached and held."""
        return 0 < self.tokens <= min(self.resident_tokens, self.pinned_tokens)

    @property
    def used_age_s(self) -> float | None:
        """Seconds since a user's request last began with it, cached or not; None if never."""
        ages = (self.last_hit_age_s, self.last_match_age_s)
        return min((age for age in ages if age is not None), default=None)


class WatchView(BaseModel):
    """A prefix that is no longer pinned, whose use the engine still notices."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    tokens: Amount = 0
    resident_tokens: Amount = 0
    matches: Amount = 0
    last_match_age_s: Seconds | None = None

    @property
    def whole(self) -> bool:
        """Whether every token is cached."""
        return 0 < self.tokens <= self.resident_tokens


class ReleasedPin(BaseModel):
    """A pin that is no more, and why."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    reason: str = ""


class PinAnswer(BaseModel):
    """Answer to one command. A refusal of a command that isn't proven genuine tells no epoch.

    ``watched`` is in reports only, and never in those of a plugin that can't evict and warm.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    ok: bool
    reason: str = ""
    message: str = ""
    epoch: str = ""
    pin_epoch: Amount = 0
    block_size: Amount = 0
    blocks_total: Amount = 0
    blocks_free: Amount = 0
    blocks_pinned: Amount = 0
    budget_blocks: Amount = 0
    offload_tier: str = ""
    pins: tuple[PinView, ...] = ()
    released: tuple[ReleasedPin, ...] = ()
    watched: tuple[WatchView, ...] | None = None

    def pin(self, pin_id: str) -> PinView | None:
        """Return the pin of this id, if the answer speaks of it."""
        return next((pin for pin in self.pins if pin.id == pin_id), None)


@dataclass(frozen=True)
class SeenPin:
    """A pin and when (monotonic seconds) the engine spoke of it.

    Since then a renewal was sent at ``unanswered_at`` that got no answer; it may have been done.
    ``doubted``: blocks of it may have gone since.
    """

    view: PinView
    seen_at: float
    unanswered_at: float = float("-inf")
    doubted: bool = False


@dataclass(frozen=True)
class PinReport:
    """All pins of one engine epoch.

    The last whole report was asked for at ``asked_at`` and read at ``reported_at``; the engine made
    it between the two, so what it did in that time may be missing. ``watched`` is None where the
    plugin knows no more commands than pin, unpin, renew and report; ``parted`` are the pins that
    went since.
    """

    epoch: str
    pin_epoch: int
    block_size: int
    blocks_total: int
    blocks_free: int
    blocks_pinned: int
    budget_blocks: int
    asked_at: float
    reported_at: float
    pins: Mapping[str, SeenPin] = field(default_factory=dict)
    released: Mapping[str, str] = field(default_factory=dict)
    watched: Mapping[str, WatchView] | None = None
    offload_tier: str = ""
    parted: frozenset[str] = frozenset()

    @property
    def evicts(self) -> bool:
        """Whether the plugin takes the commands evict and warm."""
        return self.watched is not None

    @cached_property
    def pins_of(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of the pins by owner."""
        return _by_owner(self.pins)

    @cached_property
    def watched_of(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of what is watched by owner."""
        return _by_owner(self.watched or {})

    def counts(self, placement_id: str) -> bool:
        """Whether the plugin takes note of requests that match this placement.

        It watches what was pinned, but an older one only counts hits of pins.
        """
        owner = pin_owner(placement_id)
        return self.evicts and (
            owner in self.pins_of
            or owner in self.watched_of
            or any(owner_of(each) == owner for each in self.parted)
        )

    @property
    def budget_left(self) -> int:
        """Blocks that may still be pinned."""
        return self.budget_blocks - self.blocks_pinned

    def merged(self, pin_id: str, answer: PinAnswer, now: float) -> PinReport:
        """Return the picture with what the answer to a pin, renew or unpin of ``pin_id`` adds.

        Only a whole report says which other pins are gone: the list of releases names ids that may
        have been pinned again since.
        """
        pins, parted = dict(self.pins), self.parted
        if answer.reason == PinReason.UNKNOWN_PIN and pins.pop(pin_id, None) is not None:
            parted |= {pin_id}
        for view in answer.pins:
            if view.released_reason:
                pins.pop(view.id, None)
                parted |= {view.id}
            else:
                pins[view.id] = SeenPin(view, now)
        return replace(
            self,
            pin_epoch=answer.pin_epoch,
            blocks_free=answer.blocks_free,
            blocks_pinned=answer.blocks_pinned,
            budget_blocks=answer.budget_blocks,
            pins=pins,
            released={item.id: item.reason for item in answer.released},
            parted=parted,
        )

    def unanswered(self, pin_id: str, now: float) -> PinReport:
        """Return the picture after a renewal that was not answered."""
        pin = self.pins.get(pin_id)
        return self if pin is None else self._with(replace(pin, unanswered_at=now))

    def doubt(self, pin_id: str) -> PinReport:
        """Return the picture after blocks of a pin may have gone.

        The answer to its renewal says so for sure; of many pins a report looks at some only.
        """
        pin = self.pins.get(pin_id)
        return self if pin is None else self._with(replace(pin, doubted=True))

    def with_doubts_of(self, other: PinReport) -> PinReport:
        """Return the picture with the doubts of an older one."""
        report = self
        for pin_id, pin in other.pins.items():
            if pin.doubted:
                report = report.doubt(pin_id)
        return report

    def _with(self, pin: SeenPin) -> PinReport:
        return replace(self, pins={**self.pins, pin.view.id: pin})


def whole_report(answer: PinAnswer, asked_at: float, now: float) -> PinReport:
    """Return the picture that a report's answer gives."""
    return PinReport(
        epoch=answer.epoch,
        pin_epoch=answer.pin_epoch,
        block_size=answer.block_size,
        blocks_total=answer.blocks_total,
        blocks_free=answer.blocks_free,
        blocks_pinned=answer.blocks_pinned,
        budget_blocks=answer.budget_blocks,
        asked_at=asked_at,
        reported_at=now,
        pins={view.id: SeenPin(view, now) for view in answer.pins},
        released={item.id: item.reason for item in answer.released},
        watched=None if answer.watched is None else {view.id: view for view in answer.watched},
        offload_tier=answer.offload_tier,
    )


def _by_owner(pin_ids: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    owned: dict[str, list[str]] = defaultdict(list)
    for each in pin_ids:
        owned[owner_of(each)].append(each)
    return {owner: tuple(ids) for owner, ids in owned.items()}


def pin_owner(placement_id: str) -> str:
    """Return the part of a pin id that names the placement, also when its own id is very long."""
    if len(placement_id) <= MAX_OWNER_CHARS:
        return placement_id
    return hashlib.sha256(placement_id.encode()).hexdigest()


def pin_id(placement_id: str, token_digest: str) -> str:
    """Return the id under which a placement's tokens are pinned.

    The same placement and tokens give the same id, so that a sidecar that starts anew finds the
    pins it left; other tokens give another, so that new ones are pinned before old ones go.
    """
    return f"{pin_owner(placement_id)}#{token_digest[:_DIGEST_CHARS]}"


def owner_of(engine_pin_id: str) -> str:
    """Return the owner's part of a pin id that the engine reports."""
    return engine_pin_id.rpartition("#")[0]


def digest_of(engine_pin_id: str) -> str:
    """Return the token digest in a pin id, empty if it isn't whole there."""
    digest = engine_pin_id.rpartition("#")[2]
    return digest if len(digest) == _DIGEST_CHARS else ""
