"""Configuration, from environment variables with the prefix ``PROMPTPREFIX_``."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from promptprefix.fleet import DEFAULT_RETENTION, Limits, Retention
from promptprefix_operator.injection.options import InjectionOptions, PullPolicy, default_resources
from promptprefix_operator.namespace_limits import LimitsByNamespace, limits_of, unserved

_YEAR_S = 365 * 86_400.0
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


def _split(value: object) -> object:
    """Read a comma-separated list."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


def _parse(value: object) -> object:
    """Read JSON; an empty value is an unset one."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return default_resources()
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError("is not JSON") from error


def _unset(value: object) -> object:
    """Read an empty value as none at all."""
    return None if isinstance(value, str) and not value.strip() else value


Name = Annotated[str, Field(pattern=rf"^{_NAME}$")]
Names = Annotated[tuple[Name, ...], NoDecode, BeforeValidator(_split)]


Quantities = dict[str, str | int | float]
User = Annotated[int, Field(ge=1, le=2**31 - 1)]
Resources = Annotated[dict[str, Quantities], NoDecode, BeforeValidator(_parse)]


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
    """Lease in the own namespace; created where it is missing."""
    lease_seconds: int = Field(default=15, ge=6, le=600)
    """A leader that is gone without a word is followed this long after its last renewal."""
    identity: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)
    """Name of this replica in the Lease; a part that no other process has is added."""
    webhook_configuration: Annotated[str, Field(pattern=rf"^({_NAME})?$")] = ""
    """MutatingWebhookConfiguration that sends pods here; without one there is no webhook port."""
    webhook_service_name: Name = "promptprefix-webhook"
    """Service through which the API server reaches it; in the serving certificate."""
    webhook_host: str = "0.0.0.0"  # noqa: S104 - the API server is elsewhere
    webhook_port: int = Field(default=9443, ge=0, le=65_535)
    webhook_cert_file: Path | None = None
    webhook_key_file: Path | None = None
    """The webhook's certificate that somebody else keeps, who then also keeps ``caBundle``."""
    sidecar_image: str = ""
    plugin_image: str = ""
    image_pull_policy: PullPolicy = "IfNotPresent"
    """What injected pods get."""
    control_url: Annotated[str, Field(pattern=r"^(https://[^/\s]+)?$")] = ""
    """Where injected sidecars find the control API."""
    sidecar_resources: Resources = Field(default_factory=default_resources)
    """Resources of each injected container, JSON as in a manifest."""
    sidecar_run_as_user: Annotated[User | None, BeforeValidator(_unset)] = 65532
    """User and group of injected containers; empty leaves them to the cluster."""
    sidecar_ready_timeout_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """An injected pod is Ready after this long, warm or not."""
    sidecar_warm_chunk_tokens: int = Field(default=1_024, ge=1, le=1_048_576)
    """Tokens that one request of a warm-up computes at most in injected pods."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    resync_seconds: float = Field(default=30.0, gt=0)
    """At least this often everything is planned again."""
    connected_seconds: float = Field(default=45.0, gt=0)
    """A sidecar without an open poll counts as connected this long after its last question."""
    connected_ready_seconds: float = Field(default=120.0, ge=0)
    """The same for a pod that Kubernetes says is Ready, if that is longer.

    By default as long as a sidecar's pins outlive it.
    """
    limits: LimitsByNamespace = {}
    """What namespaces may use, JSON: ``{"*": {"budgetShare": 0.5, "maxPriority": 100}}``.

    ``budgetShare`` is the part of each pod's pin budget, ``maxPriority`` caps the priorities.
    """
    version_idle_seconds: float = Field(
        default=DEFAULT_RETENTION.idle.total_seconds(), gt=0, le=_YEAR_S
    )
    """An earlier text is held until no request has matched it for this long."""
    version_max_age_seconds: float = Field(
        default=DEFAULT_RETENTION.max_age.total_seconds(), gt=0, le=_YEAR_S
    )
    """An earlier text is held at most this long after another took its place."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file must be given together")
        if (self.webhook_cert_file is None) != (self.webhook_key_file is None):
            raise ValueError("webhook_cert_file and webhook_key_file must be given together")
        if unknown := self.sidecar_resources.keys() - {"requests", "limits"}:
            raise ValueError(f"sidecar_resources: {', '.join(unknown)}: not requests or limits")
        if self.webhook_configuration:
            for name in ("sidecar_image", "plugin_image", "control_url"):
                if not getattr(self, name):
                    raise ValueError(f"{name} must be set where webhook_configuration is")
        if stray := unserved(self.limits, self.namespaces):
            raise ValueError(f"limits: {', '.join(stray)}: not among the namespaces, and not *")
        for account in self.router_service_accounts:
            if not re.fullmatch(f"{_NAME}/{_NAME}", account):
                raise ValueError(f"router_service_accounts: {account!r} is not namespace/name")
        return self

    @property
    def injection(self) -> InjectionOptions:
        """Return what the webhook needs to know."""
        return InjectionOptions(
            sidecar_image=self.sidecar_image,
            plugin_image=self.plugin_image,
            control_url=self.control_url,
            namespaces=frozenset(self.namespaces),
            pull_policy=self.image_pull_policy,
            resources=dict(self.sidecar_resources),
            run_as_user=self.sidecar_run_as_user,
            ready_timeout_s=self.sidecar_ready_timeout_s,
            warm_chunk_tokens=self.sidecar_warm_chunk_tokens,
        )

    @property
    def namespace_limits(self) -> Mapping[str, Limits]:
        """Return the limits of the served namespaces that have any."""
        return limits_of(self.limits, self.namespaces)

    @property
    def retention(self) -> Retention:
        """Return how long earlier texts are held."""
        return Retention(
            idle=timedelta(seconds=self.version_idle_seconds),
            max_age=timedelta(seconds=self.version_max_age_seconds),
        )

    @property
    def keeps_authority(self) -> bool:
        """Whether any port serves a certificate of our own."""
        webhook = bool(self.webhook_configuration) and self.webhook_cert_file is None
        return self.tls_cert_file is None or webhook
