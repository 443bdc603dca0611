"""Where requests of commands wait outside of vLLM's queues, so that users go first.

It reads no clock: ``now`` and deadlines are monotonic seconds. Anybody can send a command that is
refused, so such requests stand in a line of their own, behind the genuine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

MAX_HELD: Final = 64


@dataclass(frozen=True)
class Guest:
    """deadline: from then on the request waits like a user."""

    request: Any
    deadline: float
    genuine: bool

    @property
    def id(self) -> str:
        return str(self.request.request_id)


class Lobby:
    """Lets in one at a time; of each kind at most ``MAX_HELD`` wait."""

    def __init__(self) -> None:
        self._genuine: deque[Guest] = deque()
        self._refused: deque[Guest] = deque()
        self._inside: dict[str, Guest] = {}

    def __len__(self) -> int:
        return len(self._genuine) + len(self._refused)

    def hold(self, guest: Guest, *, users_wait: bool) -> bool:
        """False: it need not wait, or too many do. Whoever asked lets it in, then."""
        line = self._line(guest.genuine)
        if len(line) >= MAX_HELD or not self._must_wait(guest.genuine, users_wait):
            return False
        line.append(guest)
        return True

    def next(self, now: float, *, users_wait: bool) -> Guest | None:
        for line in (self._genuine, self._refused):
            if not line:
                continue
            if now >= line[0].deadline or not self._must_wait(line[0].genuine, users_wait):
                return line.popleft()
        return None

    def enter(self, guest: Guest) -> None:
        self._inside[guest.id] = guest

    def leave(self, request_id: str) -> None:
        self._inside.pop(request_id, None)

    def inside(self, request_id: str) -> Guest | None:
        return self._inside.get(request_id)

    @property
    def is_occupied(self) -> bool:
        return bool(self._inside)

    def withdraw(self, ids: Collection[str] | None) -> list[Guest]:
        """Takes those that wait and have one of these ids, None: all."""
        gone: list[Guest] = []
        for line in (self._genuine, self._refused):
            for guest in tuple(line):
                if ids is None or guest.id in ids:
                    line.remove(guest)
                    gone.append(guest)
        return gone

    def _line(self, genuine: bool) -> deque[Guest]:
        return self._genuine if genuine else self._refused

    def _must_wait(self, genuine: bool, users_wait: bool) -> bool:
        if users_wait:
            return True
        if genuine:
            return any(guest.genuine for guest in self._inside.values())
        return bool(self._inside or self._genuine)
