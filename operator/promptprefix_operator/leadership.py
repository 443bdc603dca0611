"""Which of several operators acts: the one that holds the Lease.

As client-go does it, whoever wants to lead watches the record for the time that it promises, on its
own monotonic clock: times written by other machines are never compared with ours. The leader
counts its own time from before it asks to renew, and stops acting at `Times.renew`, so that it has
stopped before anybody else's watch can end, as long as clocks run at about the same rate.

The official client brings an election of its own; it is not used, because it measures by wall
clock, dies of a connection that breaks, and neither releases the Lease nor bounds its requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import structlog

from promptprefix_operator.api_server import ApiError, ApiServer, Json

RELEASED_SECONDS = 1
"""The promise of a record that was given up: its holder is empty, and nobody needs to wait."""
_JITTER = 1.2
_CONFLICT = 409
_NOT_FOUND = 404
_RELEASE_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Times:
    """Seconds: what a record promises, when its holder stops acting, and between two attempts."""

    lease: int
    retry: float = 2.0

    @property
    def renew(self) -> float:
        """A leader that could not renew for this long acts no more."""
        return self.lease * 2 / 3

    @property
    def request(self) -> float:
        """One request that hangs must not cost the lead."""
        return self.renew / 2

    @property
    def settle(self) -> float:
        """An empty record may be a leader's that was reset, who may act on where it is cut off."""
        return self.renew + self.retry

    @property
    def first(self) -> float:
        """Where nobody ever led, a record that is created waits only for others that start too."""
        return self.retry * 1.5


@dataclass(frozen=True)
class Record:
    """The Lease's spec; ``acquired`` and ``renewed`` are the holder's wall clock."""

    holder: str = ""
    seconds: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    @property
    def released(self) -> bool:
        """Whether the last holder gave it up."""
        return not self.holder and bool(self.renewed) and self.seconds == RELEASED_SECONDS


@dataclass
class Watch:
    """What one candidate has seen; ``free_at`` is when it may take the lead, by its own clock."""

    times: Times
    record: Record | None = None
    version: str = ""
    free_at: float = field(default=float("inf"))

    def see(self, record: Record, now: float, version: str = "", *, first: bool = False) -> bool:
        """Take in a reading; return whether another one leads than before.

        ``version`` is the Lease's resourceVersion: one empty record is like another, and between
        two of them somebody may have led. ``first``: nobody ever led.
        """
        before = self.record
        if record == before and (record.holder or record.released or version == self.version):
            return False
        self.record, self.version = record, version
        if record.holder:
            self.free_at = now + (record.seconds or self.times.lease)
        elif record.released:
            self.free_at = now
        else:
            wait = self.times.first if first and before is None else self.times.settle
            known = now if before is None else self.free_at
            self.free_at = max(known, now + wait)
        return bool(record.holder) and (before is None or before.holder != record.holder)


class Leadership:
    """One candidate. ``identity`` must be no other process's; ``clock`` is monotonic seconds.

    A Lease that isn't there is created, owned by the Secret ``owner`` so that it goes with the
    installation: Argo CD installs no Leases. ``signed``: leaders leave their term in that Secret
    before they do anything else, so one without a term shows that nobody ever led. ``changed`` is
    called whenever another holder is seen. ``after_silence``: the lead was taken from one whose
    time ran out.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        namespace: str,
        name: str,
        owner: str,
        signed: bool,
        identity: str,
        times: Times,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        changed: Callable[[], None],
    ) -> None:
        self._api = api
        self._where = {"namespace": namespace, "lease": name}
        self._name = name
        self._owner = owner
        self._signed = signed
        self._owner_path = f"/api/v1/namespaces/{quote(namespace)}/secrets/{owner}"
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"
        self._path = f"{self._leases}/{name}"
        self.identity = identity
        self._times = times
        self._clock = clock
        self._now = now
        self._changed = changed
        self._watch = Watch(times)
        self._stored: Json | None = None
        self._deadline: float | None = None
        self._resigned = False
        self._late = False
        self._asked = False
        self._first = False
        self._failure = ""
        self.after_silence = False

    def seconds_left(self) -> float:
        """Return how long this process may act; 0 if it doesn't lead."""
        if self._deadline is None or self._resigned:
            return 0.0
        return max(0.0, self._deadline - self._clock())

    @property
    def leading(self) -> bool:
        """Whether this process may act now."""
        return self.seconds_left() > 0

    async def win(self) -> None:
        """Return once this process leads."""
        while True:
            if await self._attempt(self._times.request):
                break
            await asyncio.sleep(self._pause())
        log.info("leading", identity=self.identity, **self._where)

    async def hold(self) -> str:
        """Renew for as long as it goes; return why it goes no longer.

        Where the time ran out it acts no more, and tries for another `Times.lease` before it gives
        up: who had no processor, or no answer, may find the Lease as it was, and then nobody else
        has led. To start anew instead would be more work for all.
        """
        while True:
            pause = self._pause()
            await asyncio.sleep(pause if self._late else min(pause, self.seconds_left()))
            left = self.seconds_left()
            self._late = left <= 0
            if self._late:
                self._stored = None  # by now it may be another one's: look before writing
            limit = self._times.renew if self._late else min(left, self._times.request)
            if await self._attempt(limit):
                self._late = False
                continue
            other = self._watch.record.holder if self._watch.record is not None else ""
            if other not in ("", self.identity) or (self._late and not (other or self._failure)):
                return f"{other or 'nobody'} leads"
            if self._late and self._clock() >= (self._deadline or 0.0) + self._times.lease:
                return f"not renewed for {self._times.renew:g} s: {self._failure or 'no time to'}"

    def resign(self) -> None:
        """Act no more, from now on."""
        self._resigned = True

    async def release(self) -> None:
        """Let another one lead at once, if this process still holds the Lease."""
        self.resign()
        if not self._asked:
            return
        try:
            async with asyncio.timeout(_RELEASE_S):
                stored = await self._api.get(self._path)
                record = record_of(stored)
                if record.holder != self.identity:
                    return
                given_up = replace(
                    record, holder="", seconds=RELEASED_SECONDS, renewed=micro_time(self._now())
                )
                await self._api.replace(self._path, {**stored, "spec": spec_of(given_up)})
        except (ApiError, TimeoutError) as error:
            log.warning("lease not released: it has to run out", error=str(error), **self._where)
            return
        log.info("lease released", identity=self.identity, **self._where)

    async def _attempt(self, seconds: float) -> bool:
        """Take or renew the Lease, if it is ours to take; return whether that was done."""
        began = self._clock()
        try:
            async with asyncio.timeout(seconds):
                taken = await self._take()
                if taken is None:  # somebody else wrote meanwhile, perhaps only a label: look again
                    taken = await self._take()
        except (ApiError, TimeoutError) as error:
            self._stored = None
            self._tell(error)
            return False
        self._failure = ""
        if not taken:
            return False
        self._deadline = began + self._times.renew
        return True

    async def _take(self) -> bool | None:
        """Return whether the Lease is ours now; None where it must be read again."""
        stored = self._stored or await self._read()
        if stored is None:
            return None
        record = self._see(stored)
        if not self._may_take(record):
            self._stored = None
            return False
        wanted = self._claim(record)
        self._asked = True
        if record.holder != self.identity:
            self.after_silence = bool(record.holder)
        self._stored = None  # until the answer comes nobody knows what is stored
        try:
            self._stored = await self._api.replace(self._path, {**stored, "spec": spec_of(wanted)})
        except ApiError as error:
            if error.status == _CONFLICT:
                return None
            raise
        self._see(self._stored)
        return True

    async def _read(self) -> Json | None:
        """Return the Lease, created where it is missing; None if another one just created it."""
        stored = await self._get(self._path)
        if stored is not None:
            return stored
        secret = await self._get(self._owner_path)
        try:
            created = await self._api.create(self._leases, lease_of(self._name, secret))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            return None
        if secret is None:
            log.error(
                "the Lease is created without an owner, its Secret being gone: create the Secret "
                "anew, empty; at an uninstall delete the Lease by hand",
                secret=self._owner,
                **self._where,
            )
        self._first = self._signed and secret is not None and "term" not in _data(secret)
        return created

    async def _get(self, path: str) -> Json | None:
        """Return an object; None where it doesn't exist."""
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            return None

    def _may_take(self, record: Record) -> bool:
        if record.holder == self.identity:
            return True
        if self._late:
            return False  # another one may have led since, and this process knows nothing of it
        if not record.holder and self.leading:
            return True  # somebody reset our own record
        return self._clock() >= self._watch.free_at

    def _claim(self, record: Record) -> Record:
        now = micro_time(self._now())
        again = record.holder == self.identity
        return Record(
            holder=self.identity,
            seconds=self._times.lease,
            acquired=record.acquired if again and record.acquired else now,
            renewed=now,
            transitions=record.transitions + (not again),
        )

    def _see(self, stored: Json) -> Record:
        record, version = record_of(stored), str(stored["metadata"]["resourceVersion"])
        if self._watch.see(record, self._clock(), version, first=self._first):
            log.info("another leader seen", leader=record.holder, **self._where)
            self._changed()
        return record

    def _pause(self) -> float:
        return self._times.retry * random.uniform(1.0, _JITTER)  # noqa: S311 - not a secret

    def _tell(self, error: ApiError | TimeoutError) -> None:
        """Log a failure once, not at every attempt."""
        text = str(error) or "no answer in time"
        if text == self._failure:
            return
        self._failure = text
        log.error("the Lease can't be read or written", error=text, **self._where)


def lease_of(name: str, owner: Json | None) -> Json:
    """Return a Lease that nobody holds; it goes with its ``owner``, a Secret."""
    owners = []
    if owner is not None:
        named = {key: owner["metadata"][key] for key in ("name", "uid")}
        owners.append({"apiVersion": "v1", "kind": "Secret", **named})
    metadata = {"name": name, "ownerReferences": owners}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


def _data(secret: Json) -> Mapping[str, Any]:
    return secret.get("data") or {}


def record_of(lease: Mapping[str, Any]) -> Record:
    """Read a Lease; one without a spec was never held, or somebody reset it."""
    spec = lease.get("spec") or {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        seconds=int(spec.get("leaseDurationSeconds") or 0),
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def spec_of(record: Record) -> Json:
    """Return the Lease's spec."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.seconds,
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }


def micro_time(time: datetime) -> str:
    """Return the spelling that the API server reads for a MicroTime."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
