"""What the planner sees: declared prefixes, pods and what their sidecars report, at one moment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from promptprefix.reasons import Reason
from promptprefix.resource import (
    MAX_PRIORITY,
    Condition,
    LintFinding,
    Pinning,
    PromptPrefixSpec,
    VersionStatus,
)
from promptprefix.selector import LabelSelector
from promptprefix.wire import EngineState, SidecarState

Size: TypeAlias = tuple[int, int, tuple[str, ...]]
"""How large a version is by a report: block size, tokens, and digests of its heads."""


@dataclass(frozen=True)
class Pod:
    """A pod as the API server describes it.

    ``leaving``: being deleted, or finished. ``uninjected``: it asks for a sidecar and has none.
    ``decodes``: it gets KV from prefill pods. ``node`` and ``zone`` are empty if unknown.
    """

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    address: str
    ready: bool
    leaving: bool
    uninjected: bool = False
    decodes: bool = False
    node: str = ""
    zone: str = ""


@dataclass(frozen=True)
class Sidecar:
    """A connected sidecar.

    ``told`` holds the ids of placements that it was told to hold and has not yet confirmed to have
    dropped; it may hold them even when its last report does not say so. ``resting`` are those that
    it was told to release. ``silent``: it has asked nothing for longer than usual; what it holds
    stays there, and other pods come first for what is new.
    """

    state: SidecarState
    told: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()
    silent: bool = False


@dataclass(frozen=True)
class Version:
    """One text of one resource for one model. ``id`` is the id of its placements.

    ``model`` is empty where it is not known any longer; pods that have the text warm still know it.
    ``since`` is when it was first declared, ``superseded`` when another took its place.
    ``last_matched`` is the latest match that routers told of or that was written; ``used`` is when
    the latest may have been, if more is not known than what was written. ``estimated_tokens``
    counts without a tokenizer. ``readable``: its text is still known; else pods only keep what they
    hold.
    """

    id: str
    model: str
    fingerprint: str
    content_digest: str
    since: datetime | None = None
    superseded: datetime | None = None
    last_matched: datetime | None = None
    used: datetime | None = None
    estimated_tokens: int = 0
    salt_digest: str = ""
    readable: bool = True


@dataclass(frozen=True)
class Override:
    """What a person on call has asked for by an annotation, until ``until``; None: no end."""

    until: datetime | None = None


@dataclass(frozen=True)
class Limits:
    """What a namespace may use: its share of each pod's pin budget, and its highest priority."""

    budget_share: float = 1.0
    max_priority: int = MAX_PRIORITY


@dataclass(frozen=True)
class Retention:
    """How long a version that another has replaced is kept: ``idle`` after its last match.

    Never for longer than ``max_age`` after it was replaced.
    """

    idle: timedelta = timedelta(seconds=600)
    max_age: timedelta = timedelta(seconds=86_400)


DEFAULT_RETENTION: Final = Retention()


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
    ``conditions`` and ``versions`` are those of the resource's present status. ``deleting``:
    somebody's finalizer holds it back. ``warm_now`` and ``unpin`` are the orders of a person on
    call; ``notes`` say what could not be understood of them. ``pool_selector`` is that of the
    InferencePool that the spec names.
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
    versions: tuple[VersionStatus, ...] = ()
    deleting: bool = False
    created: datetime | None = None
    warm_now: Override | None = None
    unpin: Override | None = None
    notes: tuple[str, ...] = ()
    pool_selector: LabelSelector | None = None

    @property
    def selector(self) -> LabelSelector | None:
        """Selects the pods that may hold it; None if nobody said which."""
        given = self.spec.pods.selector if self.spec is not None else None
        return given or self.pool_selector

    @property
    def pinning(self) -> Pinning:
        """How it is to be protected."""
        return Pinning.NONE if self.spec is None else self.spec.pinning

    def salted(self, version: Version) -> bool:
        """Whether a version has a cache salt, or may have one, where only its id is remembered."""
        declared = self.spec is not None and self.spec.cacheSaltRef is not None
        return bool(version.salt_digest) or (declared and not version.readable)


@dataclass(frozen=True)
class Snapshot:
    """Everything a plan is made from.

    ``sidecars`` maps pod uids to connected sidecars. ``settling``: the planner has just started,
    and pods without a connected sidecar may yet report what they hold. ``limits`` are by namespace;
    one without has all. ``routed`` holds the namespaces whose router tells of matches, ``silent``
    those that have one that does not just now. ``sizes`` has what pods have reported of versions by
    their ids, whether they still do or not.
    """

    prefixes: tuple[Prefix, ...] = ()
    pods: tuple[Pod, ...] = ()
    sidecars: Mapping[str, Sidecar] = field(default_factory=dict)
    settling: bool = False
    limits: Mapping[str, Limits] = field(default_factory=dict)
    routed: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    retention: Retention = DEFAULT_RETENTION
    sizes: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)


def placement_id(uid: str, model: str, content_digest: str, salt_digest: str = "") -> str:
    """Return the id of the placements of one version of the resource ``uid``."""
    salted = f"\n{salt_digest}" if salt_digest else ""
    version = hashlib.sha256(f"{model}\n{content_digest}{salted}".encode()).hexdigest()
    return f"{uid}-{version[:12]}"


def serves(engine: EngineState | None) -> bool:
    """Return whether an engine answers; one that is down holds nothing, whatever was reported."""
    return engine is not None and engine.healthy


def owner(placement: str) -> str:
    """Return the uid of the resource that a placement id belongs to."""
    return placement.rpartition("-")[0]
