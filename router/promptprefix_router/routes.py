"""The operator's route table, filtered for one tenant and indexed for decisions."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from promptprefix.wire import Revision, RouteEndpoint, RoutePrefix, RouteTable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod of the pool. ``address`` is ``ip:port`` as Envoy writes it."""

    address: str
    host: str
    port: int
    models: frozenset[str]
    ready: bool
    warm: frozenset[str]
    engine: tuple[str, str] = ("", "")
    """The pod's uid and its engine's epoch: another engine, or the same started anew, has none of
    what was sent there before."""
    cache_tokens: int = 0
    """Tokens that the engine's cache has room for; 0 if that is unknown."""


@dataclass(frozen=True)
class Routes:
    """One state of the route table; never changed, only replaced."""

    revision: Revision | None = None
    endpoints: tuple[Endpoint, ...] = ()
    declared_models: frozenset[str] = frozenset()
    rejected: int = 0
    """Endpoints left out because their address is no IP address with a port."""
    _by_name: Mapping[str, tuple[RoutePrefix, ...]] = field(default_factory=dict)
    _by_fingerprint: Mapping[str, tuple[RoutePrefix, ...]] = field(default_factory=dict)
    _ready: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: RouteTable, tenant: str) -> Routes:
        """Index the part of ``table`` that belongs to ``tenant``."""
        prefixes = [prefix for prefix in table.prefixes if prefix.tenant == tenant]
        theirs = [endpoint for endpoint in table.endpoints if endpoint.namespace == tenant]
        usable = [endpoint for endpoint in map(_endpoint, theirs) if endpoint is not None]
        endpoints = _one_per_address(usable)
        return cls(
            revision=table.revision,
            endpoints=endpoints,
            declared_models=frozenset(prefix.model for prefix in prefixes),
            rejected=len(theirs) - len(usable),
            _by_name=_grouped((prefix.name, prefix) for prefix in prefixes),
            _by_fingerprint=_grouped((prefix.fingerprint, prefix) for prefix in prefixes),
            _ready=_ready_by_model(endpoints),
        )

    @property
    def prefixes(self) -> int:
        """Number of declared prefixes."""
        return sum(len(versions) for versions in self._by_name.values())

    @property
    def by_name(self) -> Mapping[str, tuple[RoutePrefix, ...]]:
        """The versions of each declared prefix, the one in force first."""
        return self._by_name

    @property
    def versions(self) -> Iterator[RoutePrefix]:
        """The declared versions."""
        return (prefix for versions in self._by_name.values() for prefix in versions)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the declared versions; an operator that is older than these tells none."""
        every = (prefix.id for versions in self._by_name.values() for prefix in versions)
        return frozenset(id_ for id_ in every if id_)

    @property
    def contents(self) -> frozenset[str]:
        """Content digests of the declared texts."""
        every = (prefix for versions in self._by_name.values() for prefix in versions)
        return frozenset(prefix.content_digest for prefix in every)

    def named(self, name: str, model: str | None) -> tuple[RoutePrefix, ...]:
        """Return the versions of the prefix ``name``, for ``model`` unless that is unknown."""
        versions = self._by_name.get(name, ())
        return tuple(prefix for prefix in versions if model is None or prefix.model == model)

    def with_fingerprint(self, fingerprint: str) -> tuple[RoutePrefix, ...]:
        """Return the prefixes that mean the same as a request with ``fingerprint``."""
        return self._by_fingerprint.get(fingerprint, ())

    def ready(self, model: str | None) -> tuple[Endpoint, ...]:
        """Return the ready endpoints that serve ``model``; none for an unknown one."""
        return self._ready.get(model, ()) if model is not None else ()

    def serves(self, model: str) -> bool:
        """Return whether a ready endpoint serves ``model``."""
        return model in self._ready


def _endpoint(wire: RouteEndpoint) -> Endpoint | None:
    try:
        ip = ipaddress.ip_address(wire.address)
    except ValueError:
        return None
    if not 1 <= wire.port <= 65_535:
        return None
    host = str(ip)
    return Endpoint(
        address=f"[{host}]:{wire.port}" if ip.version == 6 else f"{host}:{wire.port}",
        host=host,
        port=wire.port,
        models=frozenset(wire.models),
        ready=wire.ready,
        warm=frozenset(wire.warm),
        engine=(wire.pod_uid, wire.epoch),
        cache_tokens=wire.cache_tokens,
    )


def _one_per_address(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Keep one endpoint per address: a new pod may have the address of one that just went."""
    chosen: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        known = chosen.get(endpoint.address)
        if known is None or (endpoint.ready and not known.ready):
            chosen[endpoint.address] = endpoint
    return tuple(sorted(chosen.values(), key=lambda endpoint: endpoint.address))


def _grouped(
    pairs: Iterable[tuple[str, RoutePrefix]],
) -> Mapping[str, tuple[RoutePrefix, ...]]:
    groups: dict[str, list[RoutePrefix]] = {}
    for key, prefix in pairs:
        groups.setdefault(key, []).append(prefix)
    return MappingProxyType({key: tuple(group) for key, group in groups.items()})


def _ready_by_model(endpoints: Iterable[Endpoint]) -> Mapping[str, tuple[Endpoint, ...]]:
    groups: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.ready:
            for model in endpoint.models:
                groups.setdefault(model, []).append(endpoint)
    return MappingProxyType({model: tuple(group) for model, group in groups.items()})
