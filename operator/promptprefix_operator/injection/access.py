"""How the sidecar reaches the engine's API: address, scheme and key."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

from promptprefix_operator.injection.additions import POD_IP_VARIABLE
from promptprefix_operator.injection.engine import Engine
from promptprefix_operator.injection.environment import has_unknown
from promptprefix_operator.injection.pod import JsonObject
from promptprefix_operator.injection.shell import UNRESOLVED

API_KEY: Final = "VLLM_API_KEY"
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?")
_LOCAL_NAMES: Final = ("localhost", "ip6-localhost")


@dataclass(frozen=True)
class Access:
    """url: the engine's, a value of the sidecar's environment, where `POD_IP_VARIABLE` comes first.

    variables: further entries of that environment, with the key and the time zone.
    loopback: the engine is asked over the loopback interface.
    """

    url: str
    loopback: bool = True
    variables: list[JsonObject] = field(default_factory=list, repr=False)


def access_of(engine: Engine) -> Access | str:
    """Return how to reach the engine, or why that can't be told."""
    if engine.port is None:
        return (
            f"the value of --port of container {engine.name} isn't in the pod: "
            "write it as a number."
        )
    key = api_key(engine)
    if key is None:
        return (
            f"the API key of container {engine.name} comes from where it can't be copied: take it "
            "from a Secret by env (valueFrom.secretKeyRef) and give it as VLLM_API_KEY."
        )
    scheme = "https" if speaks_tls(engine) else "http"
    host = _host(engine)
    variables: list[JsonObject] = []
    if key:
        variables += engine.environment.definitions("PROMPTPREFIX_ENGINE_API_KEY", key)
    zone = engine.environment.values.get("TZ", "")
    if zone and not has_unknown(zone):
        variables += engine.environment.definitions("TZ", zone)
    return Access(f"{scheme}://{host}:{engine.port}", _is_loopback(host), _distinct(variables))


def api_key(engine: Engine) -> str | None:
    """Return the key that the engine asks for, empty if none; None if it can't be told.

    ``--api-key`` beats ``VLLM_API_KEY``; any one of several keys will do.
    """
    words = engine.flags.words("api-key")
    if words:
        text = next((word for word in words if word), "")
    else:
        text = engine.environment.values.get(API_KEY, "")
    return None if UNRESOLVED in text or has_unknown(text) else text


def speaks_tls(engine: Engine) -> bool:
    """Whether the engine's API is served over TLS."""
    return bool(engine.flags.value("ssl-certfile") or engine.flags.value("ssl-keyfile"))


def only_local(engine: Engine) -> bool:
    """Whether nothing outside the pod can reach the engine."""
    return _is_loopback(engine.flags.value("host") or "")


def _host(engine: Engine) -> str:
    """Return a host for a URL: loopback wherever the engine listens there."""
    text = engine.flags.value("host") or ""
    address = _address(text)
    if not text or (address is not None and address.is_unspecified):
        return "127.0.0.1"
    if address is not None:
        return f"[{address}]" if address.version == 6 else str(address)
    if text in _LOCAL_NAMES:
        return "127.0.0.1"
    if _HOST_NAME.fullmatch(text):
        return text
    # An address that only the running pod knows can be none but its own.
    return f"$({POD_IP_VARIABLE})"


def _is_loopback(host: str) -> bool:
    address = _address(host.strip("[]"))
    return host in _LOCAL_NAMES or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _distinct(variables: list[JsonObject]) -> list[JsonObject]:
    """Keep the first of entries with one name; they are equal."""
    return list({each["name"]: each for each in reversed(variables)}.values())[::-1]
