"""The operator's route table, filtered for one tenant and indexed for decisions."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from promptprefix.block_stream import BlockKeys
from promptprefix.wire import Revision, RouteEndpoint, RoutePrefix, RouteTable

NOBODY = ""
"""Owner of the prefixes that requests of every tenant match; tenant of requests without one."""


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
    blocks_port: int = 0
    """Where the pod tells which blocks its engine has cached; 0 where it doesn't."""


@dataclass(frozen=True)
class Routes:
    """One state of the route table; never changed, only replaced."""

    revision: Revision | None = None
    endpoints: tuple[Endpoint, ...] = ()
    declared_models: frozenset[str] = frozenset()
    rejected: int = 0
    """Endpoints left out because their address is no IP address with a port."""
    _by_name: Mapping[str, tuple[RoutePrefix, ...]] = field(default_factory=dict)
    _by_fingerprint: Mapping[tuple[str, str], tuple[RoutePrefix, ...]] = field(default_factory=dict)
    _fingerprints: frozenset[str] = frozenset()
    _salts: Mapping[str, str] = field(default_factory=dict, repr=False)
    _awaited: frozenset[str] = frozenset()
    _owners: frozenset[str] = frozenset()
    salt_conflicts: int = 0
    """Tenants whose prefixes have different salts, and texts declared twice with different ones."""
    blocks_keys: BlockKeys | None = field(default=None, repr=False)
    """What the names of blocks are made with; None if the operator has none."""
    _ready: Mapping[str, tuple[Endpoint, ...]] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: RouteTable, tenant: str) -> Routes:
        """Index the part of ``table`` that belongs to ``tenant``."""
        prefixes = [prefix for prefix in table.prefixes if prefix.tenant == tenant]
        theirs = [endpoint for endpoint in table.endpoints if endpoint.namespace == tenant]
        usable = [endpoint for endpoint in map(_endpoint, theirs) if endpoint is not None]
        endpoints = _one_per_address(usable)
        by_text = _grouped(((prefix.owner, prefix.fingerprint), prefix) for prefix in prefixes)
        salts = _salts_by_owner(prefixes)
        tenants = [each for each in table.tenants if each.namespace == tenant]
        for each in tenants:
            salts.setdefault(each.tenant, set()).add(each.salt)
        twice = (len({each.salt for each in _newest(group)}) for group in by_text.values())
        several = (len(found) for owner, found in salts.items() if owner != NOBODY)
        return cls(
            revision=table.revision,
            endpoints=endpoints,
            declared_models=frozenset(prefix.model for prefix in prefixes),
            rejected=len(theirs) - len(usable),
            _by_name=_grouped((prefix.name, prefix) for prefix in prefixes),
            _by_fingerprint={key: _of_one_salt(group) for key, group in by_text.items()},
            _fingerprints=frozenset(prefix.fingerprint for prefix in prefixes),
            _salts=_only_salts(salts),
            _awaited=frozenset(each.tenant for each in tenants if not any(salts[each.tenant])),
            _owners=frozenset(salts),
            salt_conflicts=sum(count > 1 for count in (*twice, *several)),
            blocks_keys=_blocks_keys(table, tenant),
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

    def named(self, name: str, model: str | None, tenant: str = NOBODY) -> tuple[RoutePrefix, ...]:
        """Return the versions of the prefix ``name``, for ``model`` unless that is unknown.

        Those with an earlier salt are left out, and all if another tenant owns them.
        """
        versions = (
            prefix
            for prefix in self._by_name.get(name, ())
            if prefix.owner in (NOBODY, tenant) and (model is None or prefix.model == model)
        )
        return _of_one_salt(tuple(versions))

    def with_fingerprint(self, fingerprint: str, tenant: str = NOBODY) -> tuple[RoutePrefix, ...]:
        """Return the prefixes that mean the same as a request of ``tenant``; its own go first.

        All have one salt. Where texts are declared twice, that of the first name in order counts.
        """
        own = self._by_fingerprint.get((tenant, fingerprint))
        return own or self._by_fingerprint.get((NOBODY, fingerprint), ())

    def owner(self, tenant: str) -> str:
        """Return the tenant if anything here is of it alone; else `NOBODY`, who matches the same.

        Clients may have a say in how a tenant is called, and in how many there are.
        """
        return tenant if tenant in self._owners else NOBODY

    def declares(self, fingerprint: str) -> bool:
        """Return whether some tenant's prefix, or nobody's, has ``fingerprint``."""
        return fingerprint in self._fingerprints

    def salt_of(self, tenant: str) -> str:
        """Return the salt of the tenant's prefixes if all that have one have the same."""
        return self._salts.get(tenant, "")

    def lacks_salt(self, tenant: str) -> bool:
        """Return whether a tenant has a salt and nobody can read it just now."""
        return tenant in self._awaited

    def reusable(self, prefixes: Sequence[RoutePrefix], tenant: str) -> bool:
        """Return whether a tenant's requests can reuse the blocks of ``prefixes``.

        Those of a tenant with a salt never go without one.
        """
        return bool(prefixes[0].salt) or not self.salt_of(tenant)

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
        blocks_port=wire.blocks_port if wire.blocks_port <= 65_535 else 0,
    )


def _blocks_keys(table: RouteTable, tenant: str) -> BlockKeys | None:
    found = (each.key for each in table.blocks_keys if each.namespace == tenant)
    return BlockKeys.from_hex(next(found, ""))


def _one_per_address(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Keep one endpoint per address: a new pod may have the address of one that just went."""
    chosen: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        known = chosen.get(endpoint.address)
        if known is None or (endpoint.ready and not known.ready):
            chosen[endpoint.address] = endpoint
    return tuple(sorted(chosen.values(), key=lambda endpoint: endpoint.address))


def _newest(prefixes: Iterable[RoutePrefix]) -> Iterable[RoutePrefix]:
    """Return of each name the first version."""
    found: dict[str, RoutePrefix] = {}
    for prefix in prefixes:
        found.setdefault(prefix.name, prefix)
    return found.values()


def _of_one_salt(prefixes: tuple[RoutePrefix, ...]) -> tuple[RoutePrefix, ...]:
    """Return those with the salt of the first name's newest version, that version first."""
    if not prefixes:
        return ()
    ordered = sorted(prefixes, key=lambda prefix: prefix.name)
    return tuple(prefix for prefix in ordered if prefix.salt == ordered[0].salt)


def _salts_by_owner(prefixes: Iterable[RoutePrefix]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for prefix in _newest(prefixes):
        found.setdefault(prefix.owner, set()).add(prefix.salt)
    return found


def _only_salts(salts: Mapping[str, set[str]]) -> Mapping[str, str]:
    """Return the salt of each owner that has just one; prefixes of nobody give no tenant one."""
    every = ((owner, found - {""}) for owner, found in salts.items() if owner != NOBODY)
    return {owner: min(found) for owner, found in every if len(found) == 1}


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(
    pairs: Iterable[tuple[_Key, RoutePrefix]],
) -> Mapping[_Key, tuple[RoutePrefix, ...]]:
    groups: dict[_Key, list[RoutePrefix]] = {}
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
