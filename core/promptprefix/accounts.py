"""What pods say of resources. Those that are read together and say the same have one account.

So what follows from an account is worked out once for all pods that have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from promptprefix.fleet import Sidecar, owner, serves
from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, EngineState, Phase, PlacementState

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SAID = attrgetter(
    "id",
    "phase",
    "reason",
    "message",
    "token_digest",
    "tokens",
    "pinned",
    "pinned_tokens",
    "released",
    "heads",
    "counted",
)
"""All of a report of a version on which a plan or a status depends, but for the latest match."""


class Manner(NamedTuple):
    """How an engine is, as far as it matters to what is made of the versions on it.

    ``asking``: its sidecar does not know yet what the engine's plugin has.
    """

    serving: bool
    block_size: int
    soft_reason: str
    offload_tier: str
    asking: bool


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """What a pod says of one version, all but when it was matched.

    ``said`` is equal where that is. ``digest`` is that of the tokens, empty if it is none.
    ``held``: the pod holds blocks for it, or is about to.
    """

    said: tuple[object, ...]
    id: str
    owner: str
    phase: Phase
    warm: bool
    held: bool
    failed: bool
    digest: str
    pinned: Pinning
    counted: bool


@dataclass(frozen=True, eq=False, slots=True)
class Account:
    """What a pod says of one resource, whose versions it reports in ``readings``, and its manner.

    ``said`` is equal where that is. ``holds``: it may hold some version; ``warm``: one of them
    warm; ``knows``: it holds one, or has released it. ``firm``: it holds one, or is to hold it just
    now; what it was told to release counts as held as long as the report says so.
    """

    said: tuple[object, ...]
    manner: Manner
    readings: tuple[Reading, ...]
    holds: bool
    warm: bool
    knows: bool
    firm: bool

    def reading(self, id_: str) -> Reading | None:
        """Return what is said of a version, if anything is."""
        for each in self.readings:
            if each.id == id_:
                return each
        return None


class Accounts:
    """The accounts of pods that are read together."""

    def __init__(self) -> None:
        self._readings: dict[Any, Reading] = {}
        self._accounts: dict[Manner, dict[tuple[tuple[Reading, ...], bool, bool], Account]] = {}

    def of(self, sidecar: Sidecar, reported: Mapping[str, PlacementState]) -> Mapping[str, Account]:
        """Return what a pod says, by resource: all that it says or was told anything of."""
        told = {owner(id_) for id_ in sidecar.told}
        firm = told
        if sidecar.resting:
            firm = {owner(id_) for id_ in sidecar.told - sidecar.resting}
        owned: dict[str, tuple[Reading, ...]] = dict.fromkeys(told, ())
        manner = _manner(sidecar.state.engine)
        readings, accounts = self._readings, self._accounts.setdefault(manner, {})
        for state in reported.values():
            said = _SAID(state)
            if (reading := readings.get(said)) is None:
                reading = readings[said] = _reading(state, said)
            owned[reading.owner] = (*owned.get(reading.owner, ()), reading)
        found = {}
        for uid, its in owned.items():
            key = (its, uid in told, uid in firm)
            if (account := accounts.get(key)) is None:
                account = accounts[key] = _account(manner, *key)
            found[uid] = account
        return found


def held_there(state: PlacementState) -> bool:
    """Whether a pod that reports this holds blocks for the placement, or is about to."""
    return state.pinned_tokens > 0 or state.phase not in (Phase.RELEASED, Phase.FAILED)


def _manner(engine: EngineState) -> Manner:
    return Manner(
        serving=serves(engine),
        block_size=engine.block_size,
        soft_reason=engine.soft_reason,
        offload_tier=engine.offload_tier,
        asking=HARD_PINS not in engine.capabilities and not engine.soft_reason,
    )


def _reading(state: PlacementState, said: tuple[object, ...]) -> Reading:
    phase, digest = state.phase, state.token_digest
    return Reading(
        said=said,
        id=state.id,
        owner=owner(state.id),
        phase=phase,
        warm=phase is Phase.WARM,
        held=held_there(state),
        # One that tries again keeps the reason.
        failed=phase is Phase.FAILED or (phase is Phase.WARMING and bool(state.reason)),
        digest=digest if _DIGEST.fullmatch(digest) else "",
        pinned=state.pinned,
        counted=state.counted,
    )


def _account(manner: Manner, readings: tuple[Reading, ...], told: bool, firm: bool) -> Account:
    warm = any(each.warm for each in readings)
    held = any(each.held for each in readings)
    released = any(each.phase is Phase.RELEASED for each in readings)
    holds = told or held
    return Account(
        said=(manner, told, firm, *(each.said for each in readings)),
        manner=manner,
        readings=readings,
        holds=holds,
        warm=warm,
        knows=holds or released,
        firm=firm or held,
    )
