"""Which requests Envoy resolves alone by their `x-promptprefix` header, and to which pods.

A plan says the same for the same table, whatever came before: routers agree without talking, and
a picker that starts anew changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

from promptprefix.wire import RoutePrefix
from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.control.routes import Endpoint, Routes

MAX_GROUPS = 512
"""Sets of pods that Envoy keeps apart: each costs its workers time at every change of the pool.

Names beyond, those whose sets fewest others share, are resolved by the picker.
"""

_GROUP_DIGITS = 12

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

_Servant: TypeAlias = tuple[str, frozenset[str]]
"""An address and what it serves: a new pod may have the address of one that served other models."""


@dataclass(frozen=True, slots=True)
class HeaderRoute:
    """A name, and the groups of pods that answer for it: those of ``groups``, in this order."""

    name: str
    id: str
    outcome: Outcome
    groups: tuple[str, ...]


@dataclass(frozen=True)
class HeaderPlan:
    """Every name that Envoy resolves, and the groups of every pod."""

    routes: tuple[HeaderRoute, ...] = ()
    _groups: Mapping[_Servant, tuple[str, ...]] = field(default_factory=dict)

    def groups_of(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the groups of ``endpoint``; none for one that came after the plan."""
        return self._groups.get(_servant(endpoint), ())

    def revoked(self, routes: Routes) -> bool:
        """Return whether a name is the picker's now: it has a salt or an owner."""
        by_name = routes.by_name
        return any(_for_some(by_name.get(route.name, ())) for route in self.routes)

    def unserved(self, endpoints: Iterable[Endpoint]) -> frozenset[str]:
        """Return the names that none of ``endpoints`` can answer for by this plan."""
        alive = {group for each in endpoints if each.ready for group in self.groups_of(each)}
        return frozenset(route.name for route in self.routes if alive.isdisjoint(route.groups))


def plan_headers(routes: Routes, max_groups: int = MAX_GROUPS) -> HeaderPlan:
    """Return the plan for a route table.

    A prefix that is salted, or of one tenant within the namespace, is left out: Envoy can't tell
    who may use it.
    """
    book = _PoolBook(routes.endpoints)
    wishes = [
        book.wish(name, versions)
        for name, versions in sorted(routes.by_name.items())
        if _NAME.fullmatch(name) and not _for_some(versions)
    ]
    groups = {pool: book.group(pool) for pool in _most_shared(wishes, max_groups)}
    return HeaderPlan(
        tuple(
            HeaderRoute(wish.name, wish.id, wish.outcome, tuple(groups[p] for p in wish.pools))
            for wish in wishes
            if all(pool in groups for pool in wish.pools)
        ),
        book.labels(groups),
    )


def _for_some(versions: Iterable[RoutePrefix]) -> bool:
    return any(each.salt or each.owner for each in versions)


_Pool: TypeAlias = int
"""Pods as bits, by their place in the route table: thousands of sets are united in no time."""


@dataclass(frozen=True, slots=True)
class _Wish:
    name: str
    id: str
    outcome: Outcome
    pools: tuple[_Pool, ...]


class _PoolBook:
    """Who holds and who serves what."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._holders: dict[str, _Pool] = {}
        self._servants: dict[str, _Pool] = {}
        self._ready: _Pool = 0
        for place, endpoint in enumerate(endpoints):
            bit = 1 << place
            self._ready |= bit * endpoint.ready
            for digest in endpoint.warm:
                self._holders[digest] = self._holders.get(digest, 0) | bit
            for model in endpoint.models:
                self._servants[model] = self._servants.get(model, 0) | bit

    def wish(self, name: str, versions: Sequence[RoutePrefix]) -> _Wish:
        """Return the pods for the version in force of ``name``, which is the first, best first.

        The header says nothing of the text: pods that hold an earlier one are as good.
        """
        newest = versions[0]
        serving = self._servants.get(newest.model, 0)
        warm = 0
        for version in versions:
            if version.model == newest.model:
                for digest in version.token_digests:
                    warm |= self._holders.get(digest, 0)
        warm &= serving
        outcome = Outcome.WARM if warm & self._ready else Outcome.COLD
        best = dict.fromkeys(pool for pool in (warm, serving) if pool)
        return _Wish(name, newest.id, outcome, tuple(best))

    def group(self, pool: _Pool) -> str:
        """Return the name of the group that has these pods."""
        members = ",".join(endpoint.address for endpoint in self._members(pool))
        return hashlib.sha256(members.encode()).hexdigest()[:_GROUP_DIGITS]

    def labels(self, groups: Mapping[_Pool, str]) -> Mapping[_Servant, tuple[str, ...]]:
        """Return the groups of each pod."""
        found: dict[_Servant, list[str]] = {}
        for pool, group in sorted(groups.items(), key=itemgetter(1)):
            for endpoint in self._members(pool):
                found.setdefault(_servant(endpoint), []).append(group)
        return {servant: tuple(each) for servant, each in found.items()}

    def _members(self, pool: _Pool) -> Iterator[Endpoint]:
        while pool:
            lowest = pool & -pool
            yield self._endpoints[lowest.bit_length() - 1]
            pool ^= lowest


def _most_shared(wishes: Iterable[_Wish], most: int) -> set[_Pool]:
    """Return at most so many pools, such that many wishes have all of theirs."""
    kept: set[_Pool] = set()
    shares = Counter(wish.pools for wish in wishes)
    for pools, _ in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
        new = [pool for pool in pools if pool not in kept]
        if len(kept) + len(new) <= most:
            kept.update(new)
    return kept


def _servant(endpoint: Endpoint) -> _Servant:
    return endpoint.address, endpoint.models
