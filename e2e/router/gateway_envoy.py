"""An Envoy configured as a gateway with InferencePool configures it: `ext_proc`, then the pool.

Each listener is one way of doing it: how the body is shown, whether the destination is taken from
the header or from the metadata, and what happens without the picker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

EnvoyConfig: TypeAlias = dict[str, Any]

DESTINATION = "x-gateway-destination-endpoint"
SUBSET_HEADER = "x-test-subset"
"""A header of these tests that a listener turns into the protocol's subset hint."""

_TYPE = "type.googleapis.com/envoy.extensions"
_MESSAGE_TIMEOUT = "5s"


@dataclass(frozen=True)
class Way:
    """One listener."""

    name: str
    request: str
    response: str
    source: str
    fail_open: bool = False
    allow_override: bool = True
    buffer_bytes: int = 8 * 1024 * 1024


WAYS = (
    Way("buffered", "BUFFERED", "NONE", "header"),
    Way("duplex", "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "metadata"),
    Way("partial", "BUFFERED_PARTIAL", "BUFFERED_PARTIAL", "metadata", buffer_bytes=65_536),
    Way("streamed", "STREAMED", "STREAMED", "header"),
    Way("strict", "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "header", allow_override=False),
    Way("stubborn", "BUFFERED", "STREAMED", "metadata", allow_override=False),
    # Envoy can't fail open once it has shown a piece of a full-duplex body.
    Way("open", "BUFFERED", "NONE", "metadata", fail_open=True),
)


def gateway_bootstrap(
    ports: dict[str, int], admin_port: int, picker_port: int, engine_ports: Sequence[int]
) -> EnvoyConfig:
    """Return the bootstrap; ``ports`` are the listeners' by the names of `WAYS`."""
    return {
        "admin": {"address": _socket(admin_port)},
        "static_resources": {
            "listeners": [_listener(way, ports[way.name]) for way in WAYS],
            "clusters": [
                _picker(picker_port),
                _pool("header", {"header": DESTINATION}, engine_ports),
                _pool("metadata", {"metadata": _METADATA_KEY}, engine_ports),
            ],
        },
    }


_METADATA_KEY = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}


def _listener(way: Way, port: int) -> EnvoyConfig:
    route = {
        "cluster": way.source,
        "timeout": "0s",
        "retry_policy": {"retry_on": "connect-failure", "num_retries": 3},
    }
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": way.name,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": way.name,
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [
            _subset_hint(),
            _ext_proc(way),
            _named("envoy.filters.http.router", "filters.http.router.v3.Router"),
        ],
    }
    return {
        "name": way.name,
        "address": _socket(port),
        "per_connection_buffer_limit_bytes": way.buffer_bytes,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _ext_proc(way: Way) -> EnvoyConfig:
    return _named(
        "envoy.filters.http.ext_proc",
        "filters.http.ext_proc.v3.ExternalProcessor",
        {
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "0s"},
            "failure_mode_allow": way.fail_open,
            "allow_mode_override": way.allow_override,
            "message_timeout": _MESSAGE_TIMEOUT,
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": way.request,
                "response_body_mode": way.response,
                "request_trailer_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    )


def _subset_hint() -> EnvoyConfig:
    rule = {
        "header": SUBSET_HEADER,
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
        "remove": True,
    }
    return _named(
        "envoy.filters.http.header_to_metadata",
        "filters.http.header_to_metadata.v3.Config",
        {"request_rules": [rule]},
    )


def _pool(name: str, source: EnvoyConfig, engine_ports: Sequence[int]) -> EnvoyConfig:
    round_robin = _policy("round_robin", "RoundRobin")
    override = {"override_host_sources": [source], "fallback_policy": {"policies": [round_robin]}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [_policy("override_host", "OverrideHost", override)]},
        "load_assignment": _assignment(name, engine_ports),
    }


def _picker(port: int) -> EnvoyConfig:
    tls = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{_TYPE}.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"alpn_protocols": ["h2"]},
        },
    }
    options = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _assignment("picker", (port,)),
        "transport_socket": tls,
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }


def _policy(name: str, kind: str, settings: EnvoyConfig | None = None) -> EnvoyConfig:
    config = _named(
        f"envoy.load_balancing_policies.{name}",
        f"load_balancing_policies.{name}.v3.{kind}",
        settings,
    )
    return {"typed_extension_config": config}


def _named(name: str, kind: str, settings: EnvoyConfig | None = None) -> EnvoyConfig:
    return {"name": name, "typed_config": {"@type": f"{_TYPE}.{kind}", **(settings or {})}}


def _assignment(name: str, ports: Sequence[int]) -> EnvoyConfig:
    endpoints = [{"endpoint": {"address": _socket(port)}} for port in ports]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _socket(port: int) -> EnvoyConfig:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
