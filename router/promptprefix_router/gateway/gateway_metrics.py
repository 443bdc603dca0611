"""What the gateway door counts besides decisions. Labels are fixed words."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from promptprefix_router.metrics import NAMESPACE

_ENDS = ("finished", "refused", "cancelled", "protocol-error", "drained")
_SERVED = ("picked", "fallback", "other")


class GatewayMetrics:
    """Counters of the gateway door, in the picker's registry."""

    def __init__(
        self,
        registry: CollectorRegistry,
        open_exchanges: Callable[[], int],
        held_bytes: Callable[[], int],
    ) -> None:
        self._ends = Counter(
            "gateway_exchanges",
            "Ended exchanges with gateways, by how they ended.",
            ["end"],
            namespace=NAMESPACE,
            registry=registry,
        )
        for end in _ENDS:
            self._ends.labels(end)
        self._served = Counter(
            "gateway_served",
            "Responses by whether they came from the picked endpoint, as gateways tell.",
            ["endpoint"],
            namespace=NAMESPACE,
            registry=registry,
        )
        for endpoint in _SERVED:
            self._served.labels(endpoint)
        for name, text, value in (
            ("gateway_open_exchanges", "Exchanges with gateways that are open.", open_exchanges),
            ("gateway_held_bytes", "Bytes of request bodies held until decided.", held_bytes),
        ):
            gauge = Gauge(name, text, namespace=NAMESPACE, registry=registry)
            gauge.set_function(value)

    def ended(self, end: str) -> None:
        """Count an exchange; ``end`` is a fixed word."""
        self._ends.labels(end).inc()

    def served(self, destination: str, endpoint: str) -> None:
        """Count a response that came from ``endpoint``; ``destination`` is what was picked."""
        picked, *fallbacks = destination.split(",")
        kind = "picked" if endpoint == picked else "other"
        self._served.labels("fallback" if endpoint in fallbacks else kind).inc()
