"""Configuration, from environment variables with the prefix ``PROMPTPREFIX_``."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


def _split(value: object) -> object:
    """Read a comma-separated list."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


Name = Annotated[str, Field(pattern=rf"^{_NAME}$")]
Names = Annotated[tuple[Name, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """Settings of the operator."""

    model_config = SettingsConfigDict(env_prefix="PROMPTPREFIX_", frozen=True)

    namespaces: Names = Field(min_length=1)
    """Namespaces whose resources and pods are served."""
    own_namespace: Name
    """Namespace of the operator's Secret and Service."""
    service_name: Name = "promptprefix-operator"
    """Service that sidecars and routers dial; in the serving certificate."""
    serving_names: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Further DNS names and IP addresses of the serving certificate."""
    listen_host: str = "0.0.0.0"  # noqa: S104 - the control API is for other pods
    listen_port: int = Field(default=8443, ge=0, le=65_535)
    metrics_host: str = "0.0.0.0"  # noqa: S104 - scraped and probed from outside the pod
    metrics_port: int = Field(default=8081, ge=0, le=65_535)
    router_service_accounts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """ServiceAccounts that may read the routes, each ``namespace/name``."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    """Serving certificate and key; without them the operator keeps its own CA in a Secret."""
    leader_election: bool = True
    """Without it this must be the only operator of its namespaces."""
    lease_name: Name = "promptprefix-operator"
    """Lease in the own namespace, made beforehand without a spec."""
    lease_seconds: int = Field(default=15, ge=6, le=600)
    """A leader that is gone without a word is followed this long after its last renewal."""
    identity: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """Name of this replica in the Lease; a part that no other process has is added."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    resync_seconds: float = Field(default=30.0, gt=0)
    """At least this often everything is planned again."""
    connected_seconds: float = Field(default=45.0, gt=0)
    """A sidecar without an open poll counts as connected this long after its last question."""
    release_seconds: float = Field(default=60.0, gt=0)
    """A deletion waits at most this long for the sidecars; leases end on their own."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file must be given together")
        for account in self.router_service_accounts:
            if not re.fullmatch(f"{_NAME}/{_NAME}", account):
                raise ValueError(f"router_service_accounts: {account!r} is not namespace/name")
        return self
