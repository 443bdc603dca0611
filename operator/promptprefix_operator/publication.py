"""What sidecars and routers are told: desired sets and the route table, with their revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from promptprefix.fleet import Sidecar
from promptprefix.placement import Plan
from promptprefix.wire import (
    Placement,
    Revision,
    RouteTable,
    SidecarState,
    SyncResponse,
    TenantSalt,
)
from promptprefix_operator.block_keys import NO_KEYS, BlockKeyring


@dataclass(frozen=True)
class _Told:
    """A pod's set, and its ids and contents; ``resting`` are those that it is to release.

    ``open`` also holds the ids of what it was told before and may not have dropped yet.
    """

    response: SyncResponse
    ids: frozenset[str]
    contents: Mapping[str, Placement]
    open: frozenset[str]
    resting: frozenset[str]


class Publication:
    """The latest plan as told, under one leader ``term``.

    A revision's number rises only when the content that it names changes. `passes` counts the
    plans; a question that brings news waits for the next one.
    """

    def __init__(self, term: int, keys: BlockKeyring = NO_KEYS) -> None:
        self.term = term
        self._keys = keys
        self.passes = 0
        self._number = 0
        self._sets: dict[str, _Told] = {}
        self._routes = RouteTable(revision=Revision(term=term, number=0), prefixes=(), endpoints=())
        self._changed = asyncio.Event()

    @property
    def routes(self) -> RouteTable:
        """The route table."""
        return self._routes

    def set_of(self, pod_uid: str) -> SyncResponse:
        """Return a pod's desired set; one that no plan knows has an empty one."""
        told = self._sets.get(pod_uid)
        if told is not None:
            return told.response
        return SyncResponse(revision=Revision(term=self.term, number=0), placements=())

    def answer_to(self, pod_uid: str, namespace: str) -> SyncResponse:
        """Return a pod's desired set with its namespace's key."""
        told = {"blocks_key": self._keys.of(namespace), "pod_uid": pod_uid}
        return self.set_of(pod_uid).model_copy(update=told)

    def placement(self, pod_uid: str, content_digest: str) -> Placement | None:
        """Return a placement of that content in the pod's set."""
        told = self._sets.get(pod_uid)
        return None if told is None else told.contents.get(content_digest)

    def holds(self, pod_uid: str, placement: str) -> bool:
        """Return whether the pod's set has the placement of this id."""
        told = self._sets.get(pod_uid)
        return told is not None and placement in told.ids

    def sidecar(
        self, pod_uid: str, state: SidecarState, applied: Revision | None, silent: bool = False
    ) -> Sidecar:
        """Join a report with what the sidecar was told; what it applied closes what was before."""
        told = self._sets.get(pod_uid)
        if told is None:
            return Sidecar(state, silent=silent)
        if applied == told.response.revision and told.open is not told.ids:
            told = self._sets[pod_uid] = replace(told, open=told.ids)
        return Sidecar(state, told.open, told.resting, silent)

    def publish(
        self, plan: Plan, unknown: Iterable[str] = (), tenants: tuple[TenantSalt, ...] = ()
    ) -> None:
        """Publish a plan and wake everybody who waits for one.

        Of the namespaces that are ``unknown`` it says nothing. ``tenants`` have these salts.
        """
        for uid in self._sets.keys() - plan.desired.keys():
            del self._sets[uid]
        for uid, placements in plan.desired.items():
            self._publish_set(uid, placements)
        before, blank = self._routes, tuple(sorted(unknown))
        told = (before.prefixes, before.endpoints, before.unknown, before.tenants)
        if told != (plan.prefixes, plan.endpoints, blank, tenants) or self.passes == 0:
            self._routes = RouteTable(
                revision=self._next(),
                prefixes=plan.prefixes,
                endpoints=plan.endpoints,
                unknown=blank,
                tenants=tenants,
                blocks_keys=self._keys.routed(
                    each.namespace for each in plan.endpoints if each.blocks_port
                ),
            )
        self.passes += 1
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Return when the next plan is published, or `wake` is called."""
        await self._changed.wait()

    def _publish_set(self, uid: str, placements: tuple[Placement, ...]) -> None:
        told = self._sets.get(uid)
        if told is not None and told.response.placements == placements:
            return
        response = SyncResponse(revision=self._next(), placements=placements)
        ids = frozenset(placement.id for placement in placements)
        contents = {placement.content_digest: placement for placement in placements}
        resting = frozenset(each.id for each in placements if each.release is not None)
        before = ids if told is None else ids | told.open
        self._sets[uid] = _Told(response, ids, contents, before, resting)

    def _next(self) -> Revision:
        self._number += 1
        return Revision(term=self.term, number=self._number)
