"""The texts of one resource: the one in force, the edit that waits, and those before.

A burst of edits, as a GitOps controller makes it, becomes one version: an edit waits until no other
has come for a while. The first text waits for nothing, nor does the return to one still known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from promptprefix.fleet import DEFAULT_RETENTION, Retention, Version, owner, placement_id
from promptprefix.resource import VersionStatus
from promptprefix.versions import EARLIER_KEPT, retained

QUIET = timedelta(seconds=2)
"""An edit comes into force when this has passed without another one,"""
LONGEST_WAIT = timedelta(seconds=10)
"""and at the latest when this has passed since the first."""

EARLIER_UNPRUNED = 8
"""Earlier versions that are remembered at most, where each is the only warm one of some pod."""


@dataclass(frozen=True)
class Pending:
    """An edit that waits. ``first`` is when the burst began, ``last`` when this text came."""

    version: Version
    first: datetime
    last: datetime

    @property
    def due(self) -> datetime:
        """When it comes into force if no other edit comes."""
        return min(self.last + QUIET, self.first + LONGEST_WAIT)


@dataclass(frozen=True)
class History:
    """Versions of one resource. ``earlier`` are those that were replaced, newest first.

    Every method returns the same object where nothing changes.
    """

    current: Version | None = None
    earlier: tuple[Version, ...] = ()
    pending: Pending | None = None

    @property
    def versions(self) -> tuple[Version, ...]:
        """The version in force and the earlier ones, newest first."""
        return self.earlier if self.current is None else (self.current, *self.earlier)

    def declare(self, version: Version, now: datetime) -> History:
        """Take in the text that the resource declares at ``now``."""
        current = self.current
        if current is not None and version.id == current.id:
            return self._reaffirm(version, current)
        waits = current is not None and current.readable and current.model == version.model
        if not waits or any(each.id == version.id for each in self.earlier):
            return self._adopt(version, now)
        before = self.pending
        if before is None:
            return replace(self, pending=Pending(version, now, now))
        if before.version.id != version.id:
            before = Pending(version, before.first, now)
        if now >= before.due:
            return self._adopt(version, now)
        return self if before is self.pending else replace(self, pending=before)

    def withdraw(self) -> History:
        """Take note that the resource declares no text that can be read; no edit waits then."""
        return self if self.pending is None else replace(self, pending=None)

    def prune(
        self,
        placed: Collection[str],
        now: datetime,
        retention: Retention = DEFAULT_RETENTION,
        needed: Callable[[], Collection[str]] = tuple,
    ) -> History:
        """Forget earlier versions that were not matched for long, but for those in ``placed``.

        Of more than `EARLIER_KEPT` first those go that nobody holds, then the least recently used.
        ``needed``, asked only then, returns those that must stay: some pod has no other one warm.
        """
        kept = [
            each
            for each in self.earlier
            if each.id in placed or retained(each, each.last_matched, now, retention)
        ]
        if (over := len(kept) - EARLIER_KEPT) > 0:
            must = needed()
            spare = [each for each in reversed(kept) if each.id not in must]
            spare.sort(key=lambda each: (each.id in placed, _used(each)))
            gone = {each.id for each in spare[:over]}
            kept = [each for each in kept if each.id not in gone]
        return self if len(kept) == len(self.earlier) else replace(self, earlier=tuple(kept))

    def not_after(self, now: datetime) -> History:
        """Return it without the times to come that a clock leaves that was set back."""
        current = self.current and _not_after(self.current, now)
        earlier = tuple(_not_after(each, now) for each in self.earlier)
        pending = self.pending
        if pending is not None and pending.last > now:
            pending = replace(pending, first=min(pending.first, now), last=now)
        same = all(map(operator.is_, (current, pending, *earlier), self._parts))
        return self if same else History(current, earlier, pending)

    def matched(self, latest: Mapping[str, datetime]) -> History:
        """Take in the latest matches by version id."""
        if all(_matched(each, latest) is each for each in self.versions):
            return self
        current = None if self.current is None else _matched(self.current, latest)
        return replace(
            self, current=current, earlier=tuple(_matched(each, latest) for each in self.earlier)
        )

    @property
    def _parts(self) -> tuple[object, ...]:
        return (self.current, self.pending, *self.earlier)

    def _reaffirm(self, version: Version, current: Version) -> History:
        if current.readable and self.pending is None:
            return self
        return replace(self._confirmed(version), current=_again(version, current), pending=None)

    def _adopt(self, version: Version, now: datetime) -> History:
        confirmed = self._confirmed(version)
        known = next((each for each in confirmed.versions if each.id == version.id), None)
        waited = self.pending if self.pending and self.pending.version.id == version.id else None
        since = now if waited is None else waited.last
        adopted = replace(version, since=since) if known is None else _again(version, known)
        rest = (each for each in confirmed.versions if each.id != version.id)
        return History(
            current=adopted,
            earlier=tuple(
                replace(each, superseded=each.superseded or now)
                for each in islice(rest, EARLIER_UNPRUNED)
            ),
        )

    def _confirmed(self, version: Version) -> History:
        """Return the history with the models and salts that can be told.

        What was rebuilt is taken to have the model and the salt of the declared ``version``; its id
        says whether that is true. Else they are unknown: pods that have it warm keep it.
        """
        current = self.current and _confirm(self.current, version)
        earlier = tuple(_confirm(each, version) for each in self.earlier)
        if current == self.current and earlier == self.earlier:
            return self
        return replace(self, current=current, earlier=earlier)


def rebuilt(
    statuses: Iterable[VersionStatus],
    uid: str,
    model: str,
    now: datetime,
    lag: timedelta = timedelta(0),
) -> History:
    """Return what a resource's status tells of its history; no text of it is readable.

    The first version, if nothing has replaced it, is in force until a text is declared. ``lag`` is
    how much later than it is written the latest match may have been: what is decided goes by that
    (``used``), what is written again does not, or it would move at every restart. No time is after
    ``now``.
    """
    versions = [
        Version(
            id=f"{uid}-{each.id}",
            model=model,
            fingerprint=each.fingerprint,
            content_digest=each.contentDigest,
            since=each.since,
            superseded=each.superseded,
            last_matched=each.lastMatched,
            used=each.lastMatched and min(each.lastMatched, now) + lag,
            readable=False,
        )
        for each in statuses
    ]
    versions = [_not_after(each, now) for each in versions]
    replaced = versions[1:] if versions and versions[0].superseded is None else versions
    return History(
        current=None if len(replaced) == len(versions) else versions[0],
        earlier=tuple(replace(each, superseded=each.superseded or now) for each in replaced),
    )


def _not_after(version: Version, now: datetime) -> Version:
    times = (version.since, version.superseded, version.last_matched, version.used)
    if all(at is None or at <= now for at in times):
        return version
    since, superseded, last_matched, used = (at and min(at, now) for at in times)
    return replace(
        version, since=since, superseded=superseded, last_matched=last_matched, used=used
    )


def _again(version: Version, known: Version) -> Version:
    """Return a text that is in force again, with what is remembered of it."""
    return replace(
        version,
        since=known.since,
        last_matched=known.last_matched,
        used=known.used,
        superseded=None,
    )


def _confirm(each: Version, declared: Version) -> Version:
    if each.readable:
        return each
    model, salt, uid = declared.model, declared.salt_digest, owner(each.id)
    for known in ((each.model, each.salt_digest), (model, salt), (model, "")):
        if placement_id(uid, known[0], each.content_digest, known[1]) == each.id:
            return replace(each, model=known[0], salt_digest=known[1])
    return replace(each, model="", salt_digest="")


def _matched(version: Version, latest: Mapping[str, datetime]) -> Version:
    at = latest.get(version.id)
    if at is None or (version.last_matched is not None and at <= version.last_matched):
        return version
    return replace(version, last_matched=at)


def _used(version: Version) -> datetime:
    """Return when a replaced version was last matched or declared."""
    times = (version.last_matched, version.used, version.superseded, version.since)
    return max(at for at in times if at)
