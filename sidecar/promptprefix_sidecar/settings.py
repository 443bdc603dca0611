"""Configuration of the sidecar, read once from ``PROMPTPREFIX_…`` environment variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, HttpUrl, SecretStr, UrlConstraints, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from promptprefix_sidecar.bearer import BearerError, bearer

ENV_PREFIX = "PROMPTPREFIX_"
DEFAULT_KEY_FILE = Path("/run/promptprefix/key/key")
DEFAULT_BLOCKS_PORT = 8091
MIN_HOLD_S = 300.0
"""A failover of the operator or an upgrade must not cost pins."""
_ENDPOINT = re.compile(r"ipc:///[^\0]{1,106}|tcp://[^*/@;\s]+:[0-9]{1,5}")


class KeySettings(BaseSettings):
    """What the init container needs."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, frozen=True, extra="ignore"
    )

    key_file: Path = Field(
        default=DEFAULT_KEY_FILE,
        description="Key of the engine commands, in a memory volume shared with the engine.",
    )


class Settings(KeySettings):
    """What the sidecar needs. Durations are in seconds."""

    control_url: Annotated[HttpUrl, UrlConstraints(allowed_schemes=["https"])] = Field(
        description="The operator's control API (https://…); it gets the pod's token."
    )
    ca_file: Path = Field(
        default=Path("/run/promptprefix/ca/ca.crt"),
        description="CA of the control API, from the ConfigMap promptprefix-ca.",
    )
    token_file: Path = Field(
        default=Path("/run/promptprefix/token/token"),
        description="ServiceAccount token with the audience promptprefix.dev/control.",
    )
    engine_url: HttpUrl = Field(
        default=HttpUrl("http://127.0.0.1:8000"),
        description="The engine's API as the sidecar reaches it.",
    )
    engine_api_key_file: Path | None = Field(
        default=None,
        description="File with the bearer key of the engine's API, if it asks for one.",
    )
    engine_api_key: SecretStr | None = Field(
        default=None, description="The key itself, instead of a file."
    )
    pod_ip: str = Field(
        min_length=1, description="Address at which the router reaches the engine (status.podIP)."
    )
    listen_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - the kubelet's probes and Prometheus come from outside
        description="Address of health, readiness and metrics; :: where pods have IPv6 only.",
    )
    listen_port: int = Field(default=8090, ge=0, le=65_535, description="Its port.")
    lease_s: int = Field(
        default=120, ge=10, le=86_400, description="Lease of a pin; renewed after a third of it."
    )
    report_interval_s: float = Field(
        default=10.0, gt=0, description="How often the plugin is asked for the state of the pins."
    )
    probe_interval_s: float = Field(
        default=2.0, gt=0, description="How often the engine's health and metrics are read."
    )
    ready_timeout_s: float = Field(
        default=600.0, gt=0, description="A pod is ready after this long, warm or not."
    )
    ready_settle_s: float = Field(
        default=3.0,
        ge=0,
        description="How long the operator has to answer a healthy engine with placements before "
        "an empty set counts as all there is.",
    )
    latch_file: Path = Field(
        default=Path("/tmp/promptprefix-latch"),  # noqa: S108 - the container's own emptyDir
        description="Remembers across restarts of the container that the engine was in service.",
    )
    hold_s: float = Field(
        default=86_400.0,
        ge=0,
        description="Pins are given up when the operator has been silent for this long; 0: never.",
    )
    touch_interval_s: float = Field(
        default=30.0, gt=0, description="How often a soft pin is used, to keep it recent."
    )
    digest_check_interval_s: float = Field(
        default=300.0, gt=0, description="How often the tokens of a declared text are checked."
    )
    warm_timeout_s: float = Field(
        default=600.0, gt=0, description="Longest time that one prefill may take."
    )
    kv_events_endpoint: str | None = Field(
        default=None,
        description="Where the engine publishes its KV events, as the sidecar reaches it: "
        "ipc:///folder/socket or tcp://host:port. Without it they are not read.",
    )
    kv_events_replay_endpoint: str | None = Field(
        default=None, description="Where the engine sends lost events again, if anywhere."
    )
    kv_events_topic: str | None = Field(
        default=None, description="Topic of the events; without one all are read."
    )
    blocks_port: int = Field(
        default=DEFAULT_BLOCKS_PORT,
        ge=0,
        le=65_535,
        description="Where routers read which blocks are cached; only with KV events. 0: nowhere.",
    )
    warm_chunk_tokens: int = Field(
        default=1024,
        ge=1,
        le=1_048_576,
        description="Tokens that one request of a warm-up computes at most; users go in between.",
    )
    soft_wait_s: float = Field(
        default=30.0,
        ge=0,
        description="How long requests of users go first where the engine has no plugin to see "
        "to it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level that is logged."
    )

    @field_validator("engine_api_key")
    @classmethod
    def _one_usable_key(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        if info.data.get("engine_api_key_file") is not None:
            raise ValueError(f"{ENV_PREFIX}ENGINE_API_KEY_FILE is set as well: give only one")
        try:
            bearer(value.get_secret_value().encode(), "it")
        except BearerError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("hold_s")
    @classmethod
    def _longer_than_a_failover(cls, value: float) -> float:
        if 0 < value < MIN_HOLD_S:
            raise ValueError(f"must be 0 (never) or at least {MIN_HOLD_S:g}")
        return value

    @field_validator("kv_events_endpoint", "kv_events_replay_endpoint")
    @classmethod
    def _connectable(cls, value: str | None) -> str | None:
        if value is None or _ENDPOINT.fullmatch(value):
            return value
        raise ValueError(
            "must be ipc:///folder/socket (at most 107 characters after ipc://) or tcp://host:port "
            "with an address that can be dialled, such as tcp://127.0.0.1:5557 for an engine that "
            "publishes at tcp://*:5557"
        )

    @field_validator("kv_events_replay_endpoint")
    @classmethod
    def _only_with_events(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not info.data.get("kv_events_endpoint"):
            raise ValueError(f"set {ENV_PREFIX}KV_EVENTS_ENDPOINT as well")
        return value

    @property
    def engine_tls(self) -> bool:
        """Whether the engine speaks HTTPS."""
        return self.engine_url.scheme == "https"

    @property
    def engine_port(self) -> int:
        """Port under which the router reaches the engine."""
        return self.engine_url.port or (443 if self.engine_url.scheme == "https" else 80)
