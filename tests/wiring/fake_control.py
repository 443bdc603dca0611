"""A fake of the operator's control API, in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import (
    Phase,
    Placement,
    PlacementState,
    Revision,
    SidecarState,
    SyncRequest,
    SyncResponse,
)
from promptprefix_sidecar.control_client import ControlError, ControlStatusError

SOON_S = 30.0
"""A report that is waited for comes within this time."""


class FakeControl:
    """Answers as the operator does: at once if the revision is old, else when something changes."""

    def __init__(self) -> None:
        self.placements: tuple[Placement, ...] = ()
        self.payloads: dict[str, Payload] = {}
        self.salts: dict[str, str] = {}
        self.blocks_key = ""
        self.pod_uid = ""
        self.salt_error: ControlError | None = None
        self.asked: list[str] = []
        self.number = 0
        self.error: ControlError | None = None
        self.states: list[SidecarState] = []
        self.reconnects = 0
        self._asked: float | None = None
        self._changed = asyncio.Condition()

    async def want(self, placements: Iterable[Placement]) -> None:
        """Change the desired set."""
        async with self._changed:
            self.placements = tuple(placements)
            self.number += 1
            self._changed.notify_all()

    async def fail(self, error: ControlError | None) -> None:
        """Answer with an error from now on, open polls too; None ends it."""
        async with self._changed:
            self.error = error
            self._changed.notify_all()

    def placement(
        self,
        name: str,
        payload: Payload,
        *,
        pinning: Pinning = Pinning.HARD,
        priority: int = 0,
        model: str = "demo",
        salt: str = "",
    ) -> Placement:
        """Return a placement whose content can be fetched."""
        self.payloads[payload.digest] = payload
        placement_id = f"{name}/{payload.digest[:8]}"
        if salt:
            self.salts[placement_id] = salt
        return Placement(
            id=placement_id,
            namespace="ml",
            name=name,
            model=model,
            fingerprint="pp1:sha256:0",
            content_digest=payload.digest,
            pinning=pinning,
            priority=priority,
            salted=bool(salt),
        )

    async def state(
        self,
        placement_id: str,
        phase: Phase = Phase.WARM,
        where: Callable[[PlacementState], bool] = lambda _: True,
    ) -> PlacementState:
        """Wait until a placement is reported in this phase; return its state."""

        def found(state: SidecarState) -> list[PlacementState]:
            return [
                each
                for each in state.placements
                if each.id == placement_id and each.phase is phase and where(each)
            ]

        return found(await self.reported(found))[0]

    async def reported(self, condition: Callable[[SidecarState], object]) -> SidecarState:
        """Wait for a report that satisfies a condition."""
        async with asyncio.timeout(SOON_S), self._changed:
            while not self.states or not condition(self.states[-1]):
                await self._changed.wait()
            return self.states[-1]

    async def gone(self, placement_id: str) -> None:
        """Wait until a placement is no longer reported."""
        await self.reported(lambda state: all(each.id != placement_id for each in state.placements))

    async def sync(self, request: SyncRequest) -> SyncResponse | None:
        async with self._changed:
            if self.error is not None:
                raise self.error
            self.states.append(request.state)
            self._asked = request.asked
            self._changed.notify_all()
            while request.revision is not None and request.revision.number == self.number:
                await self._changed.wait()
                if self.error is not None:
                    raise self.error
                if self._asked != request.asked:
                    return None
            return SyncResponse(
                revision=Revision(term=1, number=self.number),
                placements=self.placements,
                blocks_key=self.blocks_key,
                pod_uid=self.pod_uid,
            )

    async def salt(self, placement_id: str) -> str:
        error = self.salt_error or self.error
        if error is not None:
            raise error
        return self.salts[placement_id]

    async def content(self, digest: str) -> Payload:
        self.asked.append(digest)
        if self.error is not None:
            raise self.error
        try:
            return self.payloads[digest]
        except KeyError:
            raise ControlStatusError(404, "/v1/content") from None

    async def reconnect(self) -> None:
        self.reconnects += 1
