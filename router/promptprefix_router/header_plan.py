"""Which requests Envoy resolves alone by their `x-promptprefix` header, and to which pods.

A plan says the same for the same table, whatever came before: routers agree without talking, and
a picker that starts anew changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from promptprefix.wire import RoutePrefix
from promptprefix_router.choice import Outcome
from promptprefix_router.routes import Endpoint, Routes

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

    def unserved(self, endpoints: Iterable[Endpoint]) -> frozenset[str]:
        """Return the names that none of ``endpoints`` can answer for by this plan."""
        alive = {group for each in endpoints if each.ready for group in self.groups_of(each)}
        return frozenset(route.name for route in self.routes if alive.isdisjoint(route.groups))


def plan_headers(routes: Routes, max_groups: int = MAX_GROUPS) -> HeaderPlan:
    """Return the plan for a route table.

    A salted prefix is left out: the salt is in the body, which Envoy doesn't read.
    """
    book = _PoolBook(routes.endpoints)
    wishes = [
        book.wish(name, versions)
        for name, versions in sorted(routes.by_name.items())
        if _NAME.fullmatch(name) and not any(version.salt for version in versions)
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


_Pool: TypeAlias = tuple[int, ...]
"""Pods by their place in the route table, in order."""


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
        self._holders: dict[str, set[int]] = {}
        self._servants: dict[str, set[int]] = {}
        for place, endpoint in enumerate(endpoints):
            for digest in endpoint.warm:
                self._holders.setdefault(digest, set()).add(place)
            for model in endpoint.models:
                self._servants.setdefault(model, set()).add(place)

    def wish(self, name: str, versions: Sequence[RoutePrefix]) -> _Wish:
        """Return the pods for the version in force of ``name``, which is the first, best first.

        The header says nothing of the text: pods that hold an earlier one are as good.
        """
        newest = versions[0]
        serving = self._servants.get(newest.model, set())
        digests = {
            digest
            for version in versions
            if version.model == newest.model
            for digest in version.token_digests
        }
        warm = set().union(*(self._holders.get(digest, ()) for digest in digests)) & serving
        known_warm = any(self._endpoints[place].ready for place in warm)
        best = {tuple(sorted(pool)): None for pool in (warm, serving) if pool}
        outcome = Outcome.WARM if known_warm else Outcome.COLD
        return _Wish(name, newest.id, outcome, tuple(best))

    def group(self, pool: _Pool) -> str:
        """Return the name of the group that has these pods."""
        members = ",".join(self._endpoints[place].address for place in pool)
        return hashlib.sha256(members.encode()).hexdigest()[:_GROUP_DIGITS]

    def labels(self, groups: Mapping[_Pool, str]) -> Mapping[_Servant, tuple[str, ...]]:
        """Return the groups of each pod."""
        found: dict[int, list[str]] = {}
        for pool, group in groups.items():
            for place in pool:
                found.setdefault(place, []).append(group)
        return {
            _servant(self._endpoints[place]): tuple(sorted(each)) for place, each in found.items()
        }


def _most_shared(wishes: Iterable[_Wish], most: int) -> set[_Pool]:
    """Return at most so many pools, such that as many wishes as possible have all of theirs."""
    kept: set[_Pool] = set()
    shares = Counter(wish.pools for wish in wishes)
    for pools, _ in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
        if len(kept.union(pools)) <= most:
            kept.update(pools)
    return kept


def _servant(endpoint: Endpoint) -> _Servant:
    return endpoint.address, endpoint.models
