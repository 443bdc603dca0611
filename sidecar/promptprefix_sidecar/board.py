"""The one place that changes: holds the current snapshot and wakes who waits for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from promptprefix_sidecar.snapshot import Snapshot


class Subscription:
    """Tells one task that the snapshot has changed since it last looked."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake the task, now or at its next wait."""
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a change; return False if ``timeout_s`` passed without one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Board:
    """Holds the snapshot. Changes are pure functions, so no task sees half of one."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot or Snapshot()
        self._subscriptions: list[Subscription] = []

    def subscribe(self) -> Subscription:
        """Return a subscription that lives as long as the board."""
        subscription = Subscription()
        self._subscriptions.append(subscription)
        return subscription

    def apply(self, edit: Callable[[Snapshot], Snapshot]) -> None:
        """Replace the snapshot by what ``edit`` makes of it."""
        snapshot = edit(self.snapshot)
        if snapshot != self.snapshot:
            self.snapshot = snapshot
            for subscription in self._subscriptions:
                subscription.notify()
