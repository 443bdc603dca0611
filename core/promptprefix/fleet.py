"""What the planner sees: declared prefixes, pods and what their sidecars report, at one moment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from promptprefix.reasons import Reason
from promptprefix.resource import Condition, LintFinding, PromptPrefixSpec
from promptprefix.wire import SidecarState


@dataclass(frozen=True)
class Pod:
    """A pod as the API server describes it.

    ``leaving``: being deleted, or finished. ``uninjected``: it asks for a sidecar and has none.
    """

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    address: str
    ready: bool
    leaving: bool
    uninjected: bool = False


@dataclass(frozen=True)
class Sidecar:
    """A connected sidecar.

    ``told`` holds the ids of placements that it was told to hold and has not yet confirmed to have
    dropped; it may hold them even when its last report does not say so.
    """

    state: SidecarState
    told: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Version:
    """One text of one resource for one model. ``id`` is the id of its placements."""

    id: str
    model: str
    fingerprint: str
    content_digest: str


@dataclass(frozen=True)
class Refusal:
    """Why the declared text can't be warmed. ``stalled``: not until somebody edits it."""

    reason: Reason
    message: str
    stalled: bool


@dataclass(frozen=True)
class Prefix:
    """A PromptPrefix.

    ``version`` is the declared text, absent when it can't be read; with a ``refusal`` it is not
    warmed. ``earlier`` holds the versions before it that pods may still hold, newest first.
    ``conditions`` are those of the resource's present status. ``deleting``: somebody's finalizer
    holds it back.
    """

    uid: str
    namespace: str
    name: str
    generation: int
    spec: PromptPrefixSpec | None
    version: Version | None = None
    refusal: Refusal | None = None
    earlier: tuple[Version, ...] = ()
    lint: tuple[LintFinding, ...] = ()
    conditions: tuple[Condition, ...] = ()
    deleting: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Everything a plan is made from.

    ``sidecars`` maps pod uids to connected sidecars. ``settling``: the planner has just started,
    and pods without a connected sidecar may yet report what they hold.
    """

    prefixes: tuple[Prefix, ...] = ()
    pods: tuple[Pod, ...] = ()
    sidecars: Mapping[str, Sidecar] = field(default_factory=dict)
    settling: bool = False


def placement_id(uid: str, model: str, content_digest: str) -> str:
    """Return the id of the placements of one version of the resource ``uid``."""
    version = hashlib.sha256(f"{model}\n{content_digest}".encode()).hexdigest()
    return f"{uid}-{version[:12]}"


def owner(placement: str) -> str:
    """Return the uid of the resource that a placement id belongs to."""
    return placement.rpartition("-")[0]
