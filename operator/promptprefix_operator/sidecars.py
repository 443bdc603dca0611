"""Who is connected: the last report of every sidecar, and since when it is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from promptprefix.wire import EngineState, Phase, PlacementState, Revision, SidecarState
from promptprefix_operator.match_times import with_own_times

MAX_SIDECARS = 4_096

_RESTLESS = ("blocks_free", "blocks_pinned", "running", "waiting")


class TooManySidecarsError(Exception):
    """No more sidecars can be remembered."""


_Essence = tuple[EngineState, bool, tuple[PlacementState, ...]]


@dataclass
class Session:
    """One pod's sidecar. ``seen`` is monotonic seconds; ``polls`` counts open questions.

    ``essence`` is what a plan depends on of the ``state``.
    """

    state: SidecarState
    essence: _Essence = field(repr=False)
    applied: Revision | None
    seen: float
    polls: int = 0


class Sidecars:
    """The sessions by pod uid, at most `MAX_SIDECARS`; silent ones make room first.

    ``clock`` is monotonic seconds; matches are dated by ``date``.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        connected_seconds: float,
        changed: Callable[[], None],
        date: Callable[[], datetime],
    ) -> None:
        self._clock = clock
        self._date = date
        self._connected_seconds = connected_seconds
        self._changed = changed
        self._sessions: dict[str, Session] = {}

    def report(
        self,
        pod_uid: str,
        state: SidecarState,
        applied: Revision | None,
        sent: float | None = None,
    ) -> bool:
        """Take in what a sidecar says and return whether it is news for the planner.

        ``sent`` is the pod's clock at sending, in Unix seconds, if it is told. Raises
        `TooManySidecarsError` if there is no room.
        """
        now = self._clock()
        session = self._sessions.get(pod_uid)
        before = None if session is None else session.state
        state = with_own_times(state, sent, self._date().timestamp(), before)
        essence = _essence(state)
        if session is None:
            self._make_room()
            self._sessions[pod_uid] = Session(state, essence, applied, now)
            self._changed()
            return True
        news = not self._is_connected(session) or session.essence != essence
        news = news or session.applied != applied
        session.state, session.essence = state, essence
        session.applied, session.seen = applied, now
        if news:
            self._changed()
        return news

    @contextmanager
    def polling(self, pod_uid: str) -> Iterator[None]:
        """Count an open question: as long as it lasts the sidecar is connected."""
        session = self._sessions[pod_uid]
        session.polls += 1
        try:
            yield
        finally:
            session.polls -= 1
            session.seen = self._clock()

    def connected(self) -> Mapping[str, Session]:
        """Return the sessions of the connected sidecars."""
        return {
            uid: session for uid, session in self._sessions.items() if self._is_connected(session)
        }

    def silent(self) -> frozenset[str]:
        """Return the pods that reported and are silent now."""
        return frozenset(uid for uid, s in self._sessions.items() if not self._is_connected(s))

    def next_silence(self) -> float | None:
        """Return in how many seconds the next sidecar will count as disconnected."""
        now = self._clock()
        waits = [
            session.seen + self._connected_seconds - now
            for session in self._sessions.values()
            if session.polls == 0 and self._is_connected(session)
        ]
        return max(0.0, min(waits)) if waits else None

    def forget_except(self, pods: Mapping[str, object]) -> None:
        """Drop the silent sidecars of pods that no longer exist."""
        for uid in list(self._sessions):
            if uid not in pods and not self._is_connected(self._sessions[uid]):
                del self._sessions[uid]

    def _is_connected(self, session: Session) -> bool:
        return session.polls > 0 or self._clock() - session.seen < self._connected_seconds

    def _make_room(self) -> None:
        if len(self._sessions) < MAX_SIDECARS:
            return
        silent = [(s.seen, uid) for uid, s in self._sessions.items() if not self._is_connected(s)]
        if not silent:
            raise TooManySidecarsError(f"more than {MAX_SIDECARS} sidecars")
        del self._sessions[min(silent)[1]]


def _essence(state: SidecarState) -> _Essence:
    """Return the report without the numbers that no plan depends on and that always move.

    A match is news only where it ends the rest of a prefix that was let go.
    """
    return (
        state.engine.model_copy(update=dict.fromkeys(_RESTLESS, 0)),
        state.failed_open,
        tuple(
            placement.model_copy(
                update={
                    "last_hit": placement.last_hit if placement.phase is Phase.RELEASED else None,
                    "resident_tokens": 0,
                }
            )
            for placement in state.placements
        ),
    )
