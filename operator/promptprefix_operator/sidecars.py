"""Who is connected: the last report of every sidecar, and since when it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from promptprefix.wire import EngineState, Phase, PlacementState, Revision, SidecarState
from promptprefix_operator.match_times import with_own_times

MAX_SIDECARS = 4_096
OVERTAKING_S = 60.0
"""By so much at most a question is overtaken; one that seems older is of a clock begun anew."""

_RESTLESS = ("blocks_free", "blocks_pinned", "running", "waiting")


class TooManySidecarsError(Exception):
    """No more sidecars can be remembered."""


_Essence = tuple[EngineState, bool, tuple[PlacementState, ...]]


class Poll:
    """An open question of a sidecar; ``over`` once a later one has taken its place.

    While it is held, ``limit`` is the time for that.
    """

    def __init__(self) -> None:
        self.over = False
        self.limit: asyncio.Timeout | None = None

    def give_way(self) -> None:
        """Hold it no longer."""
        self.over = True
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(0.0)


@dataclass
class Session:
    """One pod's sidecar. ``seen`` is in seconds of the clock; ``polls`` counts open questions.

    ``essence`` is what a plan depends on of the ``state``. ``asked`` is the pod's own time of the
    latest question, and ``poll`` that question, if it is open and gives way to a later one.
    ``missed``: it was seen disconnected since the last question.
    """

    state: SidecarState
    essence: _Essence = field(repr=False)
    applied: Revision | None
    seen: float
    polls: int = 0
    asked: float | None = None
    poll: Poll | None = None
    missed: bool = False


class Sidecars:
    """The sessions by pod uid, at most `MAX_SIDECARS`; silent ones make room first.

    A sidecar is connected for ``connected_seconds`` after its last question; one whose pod is
    ``vouched`` for by Kubernetes for ``vouched_seconds``: it may just be slow, and what it has
    pinned outlives its silence. One that was seen disconnected stays so until it asks again: an
    engine that was started anew is Ready, too, and has nothing of its last report. ``clock`` is
    seconds in which questions could be heard (`Attention`); matches are dated by ``date``.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        connected_seconds: float,
        changed: Callable[[], None],
        date: Callable[[], datetime],
        vouched: Callable[[str], bool] = lambda _: False,
        vouched_seconds: float = 0.0,
    ) -> None:
        self._clock = clock
        self._date = date
        self._connected_seconds = connected_seconds
        self._changed = changed
        self._vouched = vouched
        self._vouched_seconds = max(connected_seconds, vouched_seconds)
        self._sessions: dict[str, Session] = {}
        self._came: float | None = None

    @property
    def came(self) -> float | None:
        """When the latest sidecar that was not known reported, by the clock; None before any."""
        return self._came

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
            self._came = now
            self._changed()
            return True
        news = self.is_late(session) or session.essence != essence
        news = news or session.applied != applied
        session.state, session.essence = state, essence
        session.applied, session.seen, session.missed = applied, now, False
        if news:
            self._changed()
        return news

    def overtaken(self, pod_uid: str, asked: float | None) -> bool:
        """Whether a question that the pod asked later is open: two connections keep no order.

        The open one may be of a sandbox or node that is gone and has not said so.
        """
        session = self._sessions.get(pod_uid)
        if session is None or session.poll is None or session.asked is None or asked is None:
            return False
        return 0 < session.asked - asked < OVERTAKING_S

    @contextmanager
    def polling(self, pod_uid: str, asked: float | None = None) -> Iterator[Poll]:
        """Count an open question: as long as it lasts the sidecar is connected.

        One that says when it was ``asked`` takes the place of the one before that did so.
        """
        session, poll = self._sessions[pod_uid], Poll()
        if asked is not None:
            if session.poll is not None:
                session.poll.give_way()
            session.poll, session.asked = poll, asked
        session.polls += 1
        try:
            yield poll
        finally:
            session.polls -= 1
            session.seen = self._clock()
            if session.poll is poll:
                session.poll = None

    def connected(self) -> Mapping[str, Session]:
        """Return the sessions of the connected sidecars; the others are missed from now on."""
        found = {}
        for uid, session in self._sessions.items():
            if self._is_connected(uid, session):
                found[uid] = session
            else:
                session.missed = True
        return found

    def is_late(self, session: Session) -> bool:
        """Whether a sidecar is silent, or would be if Kubernetes did not vouch for its pod."""
        late = self._clock() - session.seen >= self._connected_seconds
        return session.polls == 0 and late

    def silent(self) -> frozenset[str]:
        """Return the pods that reported and are silent now."""
        sessions = self._sessions.items()
        return frozenset(uid for uid, session in sessions if not self._is_connected(uid, session))

    def next_silence(self) -> float | None:
        """Return in how many seconds the next sidecar will be late, or count as disconnected."""
        now = self._clock()
        waits = [
            session.seen - now + self._patience(uid, session)
            for uid, session in self._sessions.items()
            if session.polls == 0 and self._is_connected(uid, session)
        ]
        return max(0.0, min(waits)) if waits else None

    def forget_except(self, pods: Mapping[str, object]) -> None:
        """Drop the silent sidecars of pods that no longer exist."""
        for uid in list(self._sessions):
            if uid not in pods and not self._is_connected(uid, self._sessions[uid]):
                del self._sessions[uid]

    def _is_connected(self, uid: str, session: Session) -> bool:
        age = self._clock() - session.seen
        return session.polls > 0 or age < self._patience(uid, session)

    def _patience(self, uid: str, session: Session) -> float:
        late = self.is_late(session) and not session.missed
        return self._vouched_seconds if late and self._vouched(uid) else self._connected_seconds

    def _make_room(self) -> None:
        if len(self._sessions) < MAX_SIDECARS:
            return
        silent = [(self._sessions[uid].seen, uid) for uid in self.silent()]
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
