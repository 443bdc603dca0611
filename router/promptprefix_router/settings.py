"""Configuration of the picker and of Envoy's bootstrap, from the environment."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from promptprefix_router.choosing.chooser import UndeclaredMode
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.shedding import NO_SHEDDING, Shedding

_TAKEN_HEADERS = ("host", "connection", "authorization", "cookie", "content-length", "content-type")
_TAKEN_PREFIXES = ("x-envoy-", "x-gateway-", "x-promptprefix")
_TAKEN_BY_STEERING = ("x-envoy-", "x-gateway-destination-endpoint", "x-promptprefix")

Port = Annotated[int, Field(ge=1, le=65_535)]

IDLE_TIMEOUT_S = 3600
"""How long a stream may be silent unless a setting says otherwise."""

MAX_FOLDER_BYTES = 90
"""Linux allows a Unix socket's path 107 bytes."""


class RouterSettings(BaseSettings):
    """Every setting is an environment variable with the prefix ``PROMPTPREFIX_``."""

    model_config = SettingsConfigDict(env_prefix="PROMPTPREFIX_", frozen=True, extra="ignore")

    tenant: str = Field(min_length=1, max_length=63)
    """Namespace whose pods and prefixes this router serves."""

    tenant_header: str = Field(default="", max_length=64, pattern=r"^([a-z0-9][-a-z0-9]*)?$")
    """Header in which what stands in front says the tenant; empty: requests have none."""

    control_url: str = ""
    """HTTPS address of the operator's control API; the picker needs it."""
    ca_file: Path = Path("/run/promptprefix/ca/ca.crt")
    token_file: Path = Path("/run/promptprefix/token/token")

    envoy_dir: Path = Path("/run/envoy")
    """Folder shared with Envoy: its bootstrap and the endpoints file."""
    envoy_admin: str = "http://127.0.0.1:9901"
    listen_host: str = "0.0.0.0"  # noqa: S104 - clients of the cluster dial in
    listen_port: Port = 8080
    stats_host: str = "0.0.0.0"  # noqa: S104 - Prometheus dials in
    stats_port: Port = 9902

    decision_host: str = "127.0.0.1"
    decision_port: int = Field(default=0, ge=0, le=65_535)
    """Where Envoy asks, at `decision_host`; 0: at `decision_sockets`, which costs both less."""
    rewrite_port: Port = 9003
    """Where Envoy hands over the bodies that are to be changed; at `decision_host`."""
    door: Literal["standalone", "gateway"] = "standalone"
    """Who asks: an Envoy beside the picker, or any gateway with InferencePool (``ext_proc``)."""
    gateway_host: str = "0.0.0.0"  # noqa: S104 - gateways of the cluster dial in
    gateway_port: Port = 9002
    gateway_tls: Literal["self-signed", "files", "mutual", "off"] = "self-signed"
    """A certificate made at the start, a mounted one, a mounted one and the clients' too, none."""
    gateway_tls_dir: Path = Path("/run/promptprefix/gateway-tls")
    """Folder with ``tls.crt`` and ``tls.key``; for ``mutual`` also the clients' ``ca.crt``."""
    gateway_drain_s: float = Field(default=20.0, ge=0, le=3600)
    """How long a stopping picker may take, for exchanges that a gateway can't finish alone."""

    workers: int = Field(default=1, ge=1, le=64)
    """Pickers in this pod, each a process with a core and the whole memory of its own."""
    decision_timeout_ms: int = Field(default=200, ge=1, le=10_000)
    metrics_host: str = "0.0.0.0"  # noqa: S104 - Prometheus and the kubelet dial in
    metrics_port: Port = 9090

    max_request_bytes: int = Field(default=1_048_576, ge=1024, le=64 * 1_048_576)
    """Bytes of a request body that the picker reads; longer bodies pass, read in part."""
    max_connections: int = Field(default=10_000, ge=1)
    """Connections of clients at a time; each may hold `max_request_bytes` in Envoy's memory."""
    memo_entries: int = Field(default=4096, ge=1, le=1_000_000)
    """Immutable parts whose fingerprint is remembered (about 350 bytes each)."""
    max_text_bytes: int = Field(default=32 * 1_048_576, ge=0, le=1024 * 1_048_576)
    """Bytes of declared texts that are kept, to match requests that add to one; 0: none.

    Each takes about four times as much memory.
    """
    undeclared_mode: UndeclaredMode = UndeclaredMode.APPROXIMATE
    """How requests without a declared prefix are sent where their prompt is cached."""
    history_chunks: int = Field(default=262_144, ge=1, le=16_777_216)
    """Chunks of prompts (1 KiB) whose endpoints are remembered (about 350 bytes each)."""
    precise_max_blocks: int = Field(default=1_048_576, ge=1, le=67_108_864)
    """In the mode ``precise``: names of blocks that are kept (at most 120 bytes each)."""
    precise_timeout_ms: int = Field(default=150, ge=1, le=9_000)
    """In the mode ``precise``: how long an undeclared request waits for its tokens at most."""
    tokens_per_active_request: int = Field(
        default=CostKnobs.tokens_per_active_request, ge=1, le=1_000_000
    )
    """How many tokens to compute cost as much as one active request on an endpoint."""
    load_factor: float = Field(default=CostKnobs.load_factor, ge=1, le=100, allow_inf_nan=False)
    load_slack: int = Field(default=CostKnobs.load_slack, ge=1, le=100_000)
    """An endpoint that has some of a prompt cached may have as many active requests as
    `load_factor` times the mean of its model's endpoints, and so many more."""
    saturated_at: int = Field(default=0, ge=0, le=1_000_000)
    """An endpoint with so many active requests is saturated; 0: none is, and nothing is shed."""
    sheddable_objectives: str = Field(default="", max_length=4096)
    """Objectives, behind commas, whose requests are refused while all endpoints are saturated."""
    objective_header: str = Field(
        default="x-gateway-inference-objective", max_length=64, pattern=r"^[a-z0-9][-a-z0-9]*$"
    )
    """Header in which what stands in front says a request's objective."""
    load_interval_ms: int = Field(default=100, ge=10, le=10_000)
    """Time between two readings of Envoy's active requests."""
    engine_interval_ms: int = Field(default=1000, ge=0, le=60_000)
    """Time between two readings of each engine's own number of requests; 0: they are not read."""
    health_interval_s: float = Field(default=5.0, gt=0, le=300)
    """Time between two health checks of an engine by Envoy."""
    idle_timeout_s: int = Field(default=IDLE_TIMEOUT_S, ge=1)
    """How long a stream may stay silent, such as during a long prefill."""

    log_level: str = Field(default="info", pattern="(?i)^(debug|info|warning|error|critical)$")

    @property
    def cost(self) -> CostKnobs:
        """What a choice costs."""
        return CostKnobs(self.tokens_per_active_request, self.load_factor, self.load_slack)

    @property
    def decision_sockets(self) -> tuple[Path, ...]:
        """Unix sockets at which Envoy asks, one of each worker; none with a `decision_port`."""
        if self.decision_port:
            return ()
        others = (f"picker-{number}.sock" for number in range(1, self.workers))
        return tuple(self.envoy_dir / name for name in ("picker.sock", *others))

    @property
    def shedding(self) -> Shedding:
        """What is refused under overload."""
        named = (name.strip() for name in self.sheddable_objectives.split(","))
        objectives = frozenset(name for name in named if name)
        if not self.saturated_at or not objectives:
            return NO_SHEDDING
        return Shedding(self.objective_header, objectives, self.saturated_at)

    @property
    def admin_host(self) -> str:
        """Address of Envoy's admin listener."""
        return urlsplit(self.envoy_admin).hostname or ""

    @property
    def admin_port(self) -> int:
        """Port of Envoy's admin listener."""
        return urlsplit(self.envoy_admin).port or 0

    @field_validator("tenant_header")
    @classmethod
    def _not_taken(cls, name: str) -> str:
        if name in _TAKEN_HEADERS or name.startswith(_TAKEN_PREFIXES):
            raise ValueError("must be a header of its own, such as x-tenant")
        return name

    @field_validator("objective_header")
    @classmethod
    def _is_no_other(cls, name: str) -> str:
        if name in _TAKEN_HEADERS or name.startswith(_TAKEN_BY_STEERING):
            raise ValueError("must be a header of its own, such as x-gateway-inference-objective")
        return name

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        precise = self.undeclared_mode is UndeclaredMode.PRECISE and self.door == "standalone"
        if precise and self.precise_timeout_ms >= self.decision_timeout_ms:
            raise ValueError(
                "PROMPTPREFIX_PRECISE_TIMEOUT_MS must be less than "
                "PROMPTPREFIX_DECISION_TIMEOUT_MS: Envoy goes on without an answer then"
            )
        return self

    @model_validator(mode="after")
    def _only_loopback(self) -> Self:
        for name, host in (
            ("PROMPTPREFIX_ENVOY_ADMIN", self.admin_host),
            ("PROMPTPREFIX_DECISION_HOST", self.decision_host),
        ):
            if not _is_loopback(host):
                raise ValueError(f"{name} must be a loopback address such as 127.0.0.1")
        if len(os.fsencode(self.envoy_dir)) > MAX_FOLDER_BYTES:
            raise ValueError(
                f"PROMPTPREFIX_ENVOY_DIR has more than {MAX_FOLDER_BYTES} bytes:"
                " a Unix socket in it has no valid name"
            )
        if not self.admin_port or urlsplit(self.envoy_admin).scheme != "http":
            raise ValueError("PROMPTPREFIX_ENVOY_ADMIN must be http://<address>:<port>")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
