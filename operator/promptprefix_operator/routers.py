"""Who tells of requests that matched: every router by itself, as any of them may fall silent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

ROUTER_SECONDS = 60.0
"""A router that has told nothing for so long tells of no matches any more."""

HEARING_SECONDS = 30.0
"""After a start every router has this long to be heard: nobody knows how many there are.

A report is due every 20 s, and a failed one is tried again within 10 s.
"""

LOST_SECONDS = 3_600.0
"""A router of which nothing is heard for so long is gone, where another of its namespace tells.

One that ends says so; this is for a node that went without a word.
"""

GONE_SECONDS = 86_400.0
"""The same where no other tells."""

MAX_ROUTERS = 1_024


@dataclass
class _Router:
    """One router. ``seen``: when it last asked or told; ``told``: when it last told of all matches.

    Until it has done so, which ``tells`` says, ``told`` is when it was first seen.
    """

    seen: float
    told: float
    tells: bool = False


class Routers:
    """The routers by the namespace that they serve and the pod that they are.

    Of more than `MAX_ROUTERS` the one that was seen longest ago makes room.
    ``changed`` is called when a namespace's matches are told of again. ``clock`` is monotonic
    seconds.
    """

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._routers: dict[tuple[str, str], _Router] = {}
        self._expected: set[str] = set()
        self._began = clock()

    def __len__(self) -> int:
        return len(self._routers)

    def see(self, namespace: str, router: str) -> None:
        """Take note of a router that serves ``namespace``, whether it tells of matches or not."""
        now = self._clock()
        known = self._routers.get((namespace, router))
        if known is not None:
            known.seen = now
            return
        self._make_room(now)
        self._routers[namespace, router] = _Router(seen=now, told=now)

    def hear(self, namespace: str, router: str) -> None:
        """Take note of a router of ``namespace`` that has told of all its matches."""
        before = namespace in self.routed
        self.see(namespace, router)
        known = self._routers[namespace, router]
        known.told, known.tells = known.seen, True
        self._compare(namespace, before)

    def leave(self, namespace: str, router: str) -> None:
        """Forget a router that has told of all its matches and ends."""
        before = namespace in self.routed
        self._routers.pop((namespace, router), None)
        self._compare(namespace, before)

    def expect(self, namespace: str) -> None:
        """Expect the routers that the leader before has heard."""
        self._expected.add(namespace)

    @property
    def routed(self) -> frozenset[str]:
        """The namespaces all of whose routers, one at least, tell of matches."""
        since = self._clock() - ROUTER_SECONDS
        if self._hearing:
            return frozenset()
        return frozenset(
            name
            for name, routers in self._living()
            if any(each.tells for each in routers) and all(each.told > since for each in routers)
        )

    @property
    def silent(self) -> frozenset[str]:
        """The namespaces that have a router, or are expected to, that does not tell just now."""
        young = self._clock() - self._began < ROUTER_SECONDS
        served = {name for name, _ in self._living()}
        return frozenset(served | (self._expected if young else set())) - self.routed

    @property
    def late(self) -> Mapping[str, int]:
        """How many routers of each namespace that are not gone do not tell just now."""
        since = self._clock() - ROUTER_SECONDS
        return {
            name: sum(not (each.tells and each.told > since) for each in routers)
            for name, routers in self._living()
        }

    @property
    def _hearing(self) -> bool:
        return self._clock() - self._began < HEARING_SECONDS

    def _living(self) -> Iterator[tuple[str, list[_Router]]]:
        """Yield the routers of each namespace that are not gone."""
        now = self._clock()
        by_namespace: dict[str, list[_Router]] = defaultdict(list)
        for (namespace, _), router in self._routers.items():
            by_namespace[namespace].append(router)
        for namespace, routers in by_namespace.items():
            told = any(each.tells and each.told > now - ROUTER_SECONDS for each in routers)
            limit = LOST_SECONDS if told else GONE_SECONDS
            living = [each for each in routers if now - each.seen < limit]
            if living:
                yield namespace, living

    def _compare(self, namespace: str, before: bool) -> None:
        if not before and namespace in self.routed:
            self._changed()

    def _make_room(self, now: float) -> None:
        for key in [k for k, each in self._routers.items() if now - each.seen >= GONE_SECONDS]:
            del self._routers[key]
        if len(self._routers) >= MAX_ROUTERS:
            del self._routers[min(self._routers, key=lambda key: self._routers[key].seen)]
