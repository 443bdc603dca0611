"""Envoy's clusters: the engines, the picker, and its own admin listener."""

from __future__ import annotations

from pathlib import Path

from promptprefix_router.envoy.configuration import EnvoyConfig, watched
from promptprefix_router.envoy.endpoints_file import ENDPOINTS_FILE, ENGINES_CLUSTER, GROUP_KEY
from promptprefix_router.header_names import DESTINATION_HEADER
from promptprefix_router.settings import RouterSettings

PICKER_CLUSTER = "picker"
REWRITE_CLUSTER = "rewriter"
"""The picker's other door, which speaks gRPC."""
ADMIN_CLUSTER = "admin"

MANY = 1_000_000
"""Envoy's own limits of 1,024 requests and 3 retries at a time suit no pool of engines."""

ENGINE_KEEP_ALIVE_S = 4
"""vLLM closes an idle connection after 5 s; ours must end first, or a request meets its end."""


def clusters(settings: RouterSettings, folder: Path) -> list[EnvoyConfig]:
    """Return every cluster; ``folder`` is where Envoy finds the endpoints file."""
    return [
        engines_cluster(settings, folder),
        _picker_cluster(settings),
        _local_cluster(
            REWRITE_CLUSTER, _port(settings.decision_host, settings.rewrite_port), grpc=True
        ),
        _local_cluster(ADMIN_CLUSTER, _port(settings.admin_host, settings.admin_port)),
    ]


def engines_cluster(settings: RouterSettings, folder: Path) -> EnvoyConfig:
    """Return the cluster of known engines: the picked one, else the least loaded."""
    return {
        "name": ENGINES_CLUSTER,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": watched(folder / ENDPOINTS_FILE)},
        "connect_timeout": "2s",
        "load_balancing_policy": {"policies": [_override_host()]},
        # An engine that fails its checks or is not ready is never a fallback, not even the last.
        # Envoy's default of merging changes of health over 1 s would leave a pool that just came
        # up without a healthy engine for that long.
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            "update_merge_window": "0s",
        },
        "health_checks": [_health_check(settings)],
        "outlier_detection": _leave_out_the_dead(),
        # Without this an engine that left the route table would be served while it is healthy.
        "ignore_health_on_host_removal": True,
        "circuit_breakers": _no_limits(),
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_probes": 3,
                "keepalive_time": 30,
                "keepalive_interval": 10,
            }
        },
        "typed_extension_protocol_options": _protocol(f"{ENGINE_KEEP_ALIVE_S}s", "http"),
    }


def _override_host() -> EnvoyConfig:
    return _policy(
        "override_host",
        "OverrideHost",
        override_host_sources=[{"header": DESTINATION_HEADER}],
        fallback_policy={"policies": [_groups()]},
    )


def _groups() -> EnvoyConfig:
    """The groups that the route names, in order; the whole pool where it names none."""
    return _policy(
        "subset",
        "Subset",
        fallback_policy="ANY_ENDPOINT",
        subset_selectors=[{"keys": [GROUP_KEY], "fallback_policy": "NO_FALLBACK"}],
        list_as_any=True,
        metadata_fallback_policy="FALLBACK_LIST",
        subset_lb_policy={"policies": [_policy("least_request", "LeastRequest")]},
    )


def _policy(name: str, message: str, **fields: object) -> EnvoyConfig:
    package = "envoy.extensions.load_balancing_policies"
    return {
        "typed_extension_config": {
            "name": f"envoy.load_balancing_policies.{name}",
            "typed_config": {"@type": f"type.googleapis.com/{package}.{name}.v3.{message}"}
            | fields,
        }
    }


def _health_check(settings: RouterSettings) -> EnvoyConfig:
    interval = f"{settings.health_interval_s:g}s"
    return {
        "timeout": "5s",
        "interval": interval,
        "no_traffic_interval": interval,
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/health"},
    }


def _leave_out_the_dead() -> EnvoyConfig:
    """Return how a pod is left out for a while that twice in a row failed before it answered.

    A retry of a request by header would else go to the same pod, if that is the only warm one.
    What an engine answers counts for nothing, and half of a pool always stays.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 2,
        "enforcing_consecutive_5xx": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "interval": "0.5s",
        "base_ejection_time": "1s",
        "max_ejection_time": "5s",
        "max_ejection_percent": 50,
    }


def _picker_cluster(settings: RouterSettings) -> EnvoyConfig:
    """Return all workers, in turns; one that has ended is left out for a moment."""
    if not settings.decision_sockets:
        address = _port(settings.decision_host, settings.decision_port)
        return _local_cluster(PICKER_CLUSTER, address)
    pipes = [{"pipe": {"path": str(each)}} for each in settings.decision_sockets]
    cluster = _local_cluster(PICKER_CLUSTER, *pipes)
    if len(pipes) == 1:
        return cluster
    # Else who is left out again is asked for another second: Envoy merges changes of health.
    at_once = {"update_merge_window": "0s"}
    return cluster | {"outlier_detection": _leave_out_the_dead(), "common_lb_config": at_once}


def _port(host: str, port: int) -> EnvoyConfig:
    return {"socket_address": {"address": host, "port_value": port}}


def _local_cluster(name: str, *addresses: EnvoyConfig, grpc: bool = False) -> EnvoyConfig:
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.1s",
        "circuit_breakers": _no_limits(),
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": each}} for each in addresses]}
            ],
        },
        "typed_extension_protocol_options": _protocol("60s", "http2" if grpc else "http"),
    }


def _protocol(idle_timeout: str, version: str) -> EnvoyConfig:
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "common_http_protocol_options": {"idle_timeout": idle_timeout},
            "explicit_http_config": {f"{version}_protocol_options": {}},
        }
    }


def _no_limits() -> EnvoyConfig:
    limits = dict.fromkeys(
        ("max_connections", "max_pending_requests", "max_requests", "max_retries"), MANY
    )
    return {"thresholds": [limits]}
