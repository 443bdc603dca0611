"""What operator, sidecar and router exchange over the control API.

JSON over HTTPS; ServiceAccount tokens with the audience `AUDIENCE`. Unknown fields are ignored,
so that a newer peer can add some.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from promptprefix.resource import OnIdle, Pinning

AUDIENCE = "promptprefix.dev/control"
CA_CONFIG_MAP = "promptprefix-ca"
CA_KEY = "ca.crt"

SYNC_PATH = "/v1/sidecar/sync"
CONTENT_PATH = "/v1/content"
ROUTES_PATH = "/v1/routes"
SALT_PATH = "/v1/salts"
MATCHES_PATH = "/v1/matches"

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

MATCH_STEP_S = 15.0
"""Matches of a held prefix are told once in this many seconds: the latest known may be so old."""

MAX_MATCHES = 8_192
"""Versions in one report of matches."""

HEAD_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
               1536, 2048, 3072, 4096, 6144, 8192)  # fmt: skip
"""Numbers of leading blocks of which `PlacementState.heads` has digests, as far as they fit."""

MAX_COUNT = 2**53
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""A number that every JSON reader keeps: reported ones are copied into a resource's status."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A duration, or an instant in Unix seconds; a peer's clock may tell any."""


class Wire(BaseModel):
    """Base of the messages."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


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

    ``tls``: the engine speaks HTTPS on ``port``. ``budget_blocks`` is how many blocks pins may
    hold; 0 if unknown. ``running`` and ``waiting`` count requests of users. ``asleep``: it was put
    to sleep and serves nothing. ``offload_tier`` names the KV connector that keeps copies outside
    GPU memory; empty without one. ``blocks_port`` is where the sidecar feeds routers with the names
    of cached blocks (`block_stream`); 0 where it doesn't.
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
    budget_blocks: Count = 0
    running: Count = 0
    waiting: Count = 0
    asleep: bool = False
    offload_tier: str = ""
    blocks_port: Count = 0
    capabilities: tuple[str, ...] = ()
    soft_reason: str = ""
    """Why hard pins can't be had; empty if they can."""


class PlacementState(Wire):
    """One prefix on one pod.

    ``tokens`` counts the reusable head in whole blocks; ``resident_tokens`` and ``pinned_tokens``
    are the engine's own evidence of how much of it is cached and pinned. ``pinned`` says how it is
    protected just now. ``released`` is what came of the blocks of a released one, empty as long as
    it is held or being released. ``heads`` are digests (12 hex characters) of its first
    `HEAD_LADDER` blocks: equal digests are shared blocks. ``last_hit`` is the latest request of a
    user that matched it, cached or not; ``counted``: the engine's plugin takes note of such. Times
    are Unix seconds. Of a released one whose tokens nobody knew they are asked for.
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
    released: OnIdle | None = None
    heads: tuple[str, ...] = Field(default=(), max_length=len(HEAD_LADDER))
    last_hit: Seconds | None = None
    counted: bool = False
    warm_seconds: Seconds | None = None


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
    """A sidecar's question: what it last applied, and its state.

    ``sent`` is the pod's clock at sending, in Unix seconds: the ages of matches count by it, so
    that clocks that differ do no harm. ``asked`` is its monotonic clock then: the question takes
    the place of an earlier one that is still open, which is answered as if there were no news. So a
    new state is told without closing a connection. An operator that is older holds both.
    """

    revision: Revision | None = None
    state: SidecarState
    sent: Seconds | None = None
    asked: Seconds | None = None


class Placement(Wire):
    """A prefix that a pod should hold. ``id`` names one version of one resource.

    ``release``: it is not to be held just now, and this is to become of its blocks; a match warms
    it again. ``retained``: an earlier version, held as long as it is there and never warmed again.
    ``salted``: its requests carry a cache salt, which `SALT_PATH` answers by the placement's id.
    """

    id: str
    namespace: str
    name: str
    model: str
    fingerprint: str
    content_digest: str
    pinning: Pinning
    priority: int = 0
    release: OnIdle | None = None
    retained: bool = False
    salted: bool = False


class Salt(Wire):
    """The cache salt of one placement; a secret."""

    salt: str = Field(repr=False)


class SyncResponse(Wire):
    """The whole desired set of one pod; the empty set is an answer too.

    ``blocks_key`` is the key of the feeds of the pod's namespace in hexadecimal, a secret, and
    ``pod_uid`` the pod as routers know it; an operator that is older tells neither.
    """

    revision: Revision
    placements: tuple[Placement, ...]
    blocks_key: str = Field(default="", repr=False)
    pod_uid: str = ""


class RoutePrefix(Wire):
    """A declared prefix as the router matches it. ``tenant`` is its namespace.

    ``id`` names the version. ``content_digest`` names its text, ``tokens`` counts its reusable head
    as pods report it, else by estimate; an operator that is older tells neither. ``salt`` is a
    secret; empty without one. ``normalize``: requests that mean it are rewritten to its bytes.
    ``owner`` is the tenant, within the namespace, whose requests alone match it; empty: all do.
    """

    id: str = ""
    name: str
    tenant: str
    model: str
    fingerprint: str
    content_digest: str = ""
    tokens: Count = 0
    token_digests: tuple[str, ...] = ()
    salt: str = Field(default="", repr=False)
    normalize: bool = False
    owner: str = ""


class RouteEndpoint(Wire):
    """A pod of the router's pool. ``warm`` holds the token digests that it holds warm.

    ``epoch`` changes when its engine restarts; ``cache_tokens`` is how many tokens the engine's
    cache has room for, 0 if unknown. ``blocks_port`` is that of its feed of block names; 0 without.
    """

    pod_uid: str
    pod: str
    namespace: str
    address: str
    port: int
    models: tuple[str, ...]
    ready: bool
    warm: tuple[str, ...] = ()
    epoch: str = ""
    cache_tokens: Count = 0
    blocks_port: Count = 0


class BlocksKey(Wire):
    """The key of the feeds of ``namespace`` (`block_stream`) in hexadecimal, a secret."""

    namespace: str
    key: str = Field(repr=False)


class TenantSalt(Wire):
    """The cache salt of a tenant within ``namespace``, a secret; empty while none can be read.

    A tenant has one as long as it declares one, whether what it declares is held or not.
    """

    namespace: str
    tenant: str
    salt: str = Field(default="", repr=False)


class RouteTable(Wire):
    """Everything the router needs, whole.

    Of the namespaces that are ``unknown`` nothing is in it: this leader could not read them yet.
    What a router knows of them stays in force.
    """

    revision: Revision
    prefixes: tuple[RoutePrefix, ...]
    endpoints: tuple[RouteEndpoint, ...]
    unknown: tuple[str, ...] = ()
    tenants: tuple[TenantSalt, ...] = ()
    blocks_keys: tuple[BlocksKey, ...] = ()

    @cached_property
    def contents(self) -> frozenset[str]:
        """Digests of the contents that the prefixes have."""
        return frozenset(prefix.content_digest for prefix in self.prefixes)

    def of(self, tenant: str) -> RouteTable:
        """Return the part of one tenant."""
        return RouteTable(
            revision=self.revision,
            prefixes=tuple(each for each in self.prefixes if each.tenant == tenant),
            endpoints=tuple(each for each in self.endpoints if each.namespace == tenant),
            unknown=tuple(each for each in self.unknown if each == tenant),
            tenants=tuple(each for each in self.tenants if each.namespace == tenant),
            blocks_keys=tuple(each for each in self.blocks_keys if each.namespace == tenant),
        )


class Match(Wire):
    """Requests of users that matched one version: how many since the last report, and the latest.

    ``at`` is Unix seconds.
    """

    id: str
    count: Count
    at: Seconds


class MatchReport(Wire):
    """What a router of ``tenant`` has matched since its last report that was taken in.

    ``sent`` is the router's clock at sending, in Unix seconds: ages count by it, so that clocks
    that differ do no harm. ``term`` is that of the leader that knows all the matches before; 0 if
    none does, or if there are more than one report holds. ``leaving``: it ends, and these are all.
    """

    tenant: str = Field(max_length=63)
    sent: Seconds
    term: int = 0
    leaving: bool = False
    matches: tuple[Match, ...] = Field(default=(), max_length=MAX_MATCHES)


class MatchAnswer(Wire):
    """The term of the leader that took a report in; one that is new to a router knows no others."""

    term: int
