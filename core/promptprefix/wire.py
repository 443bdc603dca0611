"""What operator, sidecar and router exchange over the control API.

JSON over HTTPS; ServiceAccount tokens with the audience `AUDIENCE`. Unknown fields are ignored,
so that a newer peer can add some.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from promptprefix.resource import Pinning

AUDIENCE = "promptprefix.dev/control"
CA_CONFIG_MAP = "promptprefix-ca"
CA_KEY = "ca.crt"

SYNC_PATH = "/v1/sidecar/sync"
CONTENT_PATH = "/v1/content"
ROUTES_PATH = "/v1/routes"

LONG_POLL_S = 30.0
"""Seconds that the operator holds a question without news before it answers 204."""

STANDBY_STATUS = 421
"""HTTP status (Misdirected Request) of an operator that does not lead; it closes the connection.

The client dials again: the Service picks an operator anew.
"""

HARD_PINS = "hard-pins"
"""Capability of an engine that has loaded the plugin and accepts our key."""


MAX_REPORTED = 4_096
"""Placements, and models, of one pod's report."""

Count = Annotated[int, Field(le=2**53)]
"""A number that every JSON reader keeps: reported ones are copied into a resource's status."""


class Wire(BaseModel):
    """Base of the messages."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Revision(Wire):
    """Version of an answer: the leader's term, and a number that rises within it."""

    term: int
    number: int


class Phase(StrEnum):
    """Life of a prefix on one pod."""

    PENDING = "Pending"
    WARMING = "Warming"
    WARM = "Warm"
    RELEASED = "Released"
    FAILED = "Failed"


class EngineState(Wire):
    """What a sidecar knows of its engine. ``epoch`` changes when the engine restarts.

    ``tls``: the engine speaks HTTPS on ``port``.
    """

    healthy: bool
    address: str
    port: int
    tls: bool = False
    models: tuple[str, ...] = Field(default=(), max_length=MAX_REPORTED)
    epoch: str = ""
    version: str = ""
    block_size: Count = 0
    blocks_total: Count = 0
    blocks_free: Count = 0
    blocks_pinned: Count = 0
    capabilities: tuple[str, ...] = ()
    soft_reason: str = ""
    """Why hard pins can't be had; empty if they can."""


class PlacementState(Wire):
    """One prefix on one pod.

    ``tokens`` counts the reusable head in whole blocks; ``resident_tokens`` and ``pinned_tokens``
    are the engine's own evidence of how much of it is cached and pinned. ``pinned`` says how it is
    protected just now. Times are Unix seconds.
    """

    id: str
    phase: Phase
    reason: str = ""
    message: str = ""
    token_digest: str = ""
    tokens: Count = 0
    resident_tokens: Count = 0
    pinned_tokens: Count = 0
    pinned: Pinning = Pinning.NONE
    last_hit: float | None = None
    warm_seconds: float | None = None


class SidecarState(Wire):
    """Everything a sidecar reports.

    ``ready``: the pod's readiness gate is open. ``failed_open``: in this epoch of the engine it was
    opened by its time limit, before everything was warm.
    """

    engine: EngineState
    ready: bool = False
    failed_open: bool = False
    placements: tuple[PlacementState, ...] = Field(default=(), max_length=MAX_REPORTED)


class SyncRequest(Wire):
    """A sidecar's question: what it last applied, and its state."""

    revision: Revision | None = None
    state: SidecarState


class Placement(Wire):
    """A prefix that a pod should hold. ``id`` names one version of one resource."""

    id: str
    namespace: str
    name: str
    model: str
    fingerprint: str
    content_digest: str
    pinning: Pinning
    priority: int = 0


class SyncResponse(Wire):
    """The whole desired set of one pod; the empty set is an answer too."""

    revision: Revision
    placements: tuple[Placement, ...]


class RoutePrefix(Wire):
    """A declared prefix as the router matches it. ``tenant`` is its namespace."""

    name: str
    tenant: str
    model: str
    fingerprint: str
    token_digests: tuple[str, ...] = ()


class RouteEndpoint(Wire):
    """A pod of the router's pool. ``warm`` holds the token digests that it holds warm."""

    pod_uid: str
    pod: str
    namespace: str
    address: str
    port: int
    models: tuple[str, ...]
    ready: bool
    warm: tuple[str, ...] = ()


class RouteTable(Wire):
    """Everything the router needs, whole."""

    revision: Revision
    prefixes: tuple[RoutePrefix, ...]
    endpoints: tuple[RouteEndpoint, ...]
