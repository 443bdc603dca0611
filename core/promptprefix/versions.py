"""The versions of a resource's text: which one is in force, which are kept, what the status says.

Edits that follow each other closely become one version. A version that another has replaced is kept
as long as clients send its text: they own it, and change it at their own time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from promptprefix.fleet import DEFAULT_RETENTION, Prefix, Retention, Snapshot, Version, owner
from promptprefix.resource import MAX_VERSIONS, VersionStatus
from promptprefix.wire import MATCH_STEP_S, Phase

UNTOLD = timedelta(seconds=MATCH_STEP_S)
"""There may have been later matches than the latest that is known, by so much."""

EARLIER_KEPT = MAX_VERSIONS - 1
"""Versions that are remembered beside the one in force."""

MATCH_STEP = timedelta(minutes=5)
"""What routers tell of matches is taken over in steps of this: traffic alone plans nothing."""
WRITE_STEP = MATCH_STEP - timedelta(minutes=1)
"""``lastMatched`` in a status moves by at least this, so that matches alone write it seldom.

It is shorter, as the match that is taken over after a step is a while ago.
"""
MATCH_LAG = WRITE_STEP + MATCH_STEP + timedelta(minutes=3)
"""``lastMatched`` lags by at most this; a pass and the patience of the writer are in it."""


def kept_until(
    version: Version, last_matched: datetime | None, retention: Retention = DEFAULT_RETENTION
) -> datetime | None:
    """Return when a replaced version is no longer kept; None: it was not replaced.

    ``last_matched`` is what engines tell, beside the version's own.
    """
    if version.superseded is None:
        return None
    end = version.superseded + retention.max_age
    matches = (version.last_matched, version.used, last_matched)
    uses = (min(at, end) + UNTOLD for at in matches if at is not None)
    return min(max((version.superseded, *uses)) + retention.idle, end)


def retained(
    version: Version,
    last_matched: datetime | None,
    now: datetime,
    retention: Retention = DEFAULT_RETENTION,
) -> bool:
    """Return whether a version is still kept; ``last_matched`` is as in `kept_until`."""
    end = kept_until(version, last_matched, retention)
    return end is None or now < end


def short_id(version_id: str) -> str:
    """Return the part of a version's id that the resource's uid is not."""
    return version_id.rpartition("-")[2]


def only_warm(snapshot: Snapshot) -> Mapping[tuple[str, str], frozenset[str]]:
    """Return the versions that are the only ones of their resource that some pod holds warm.

    They are by namespace and uid of the resource: of a resource only pods of its namespace are
    believed.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for pod in snapshot.pods:
        sidecar = snapshot.sidecars.get(pod.uid)
        if sidecar is None:
            continue
        warm: dict[str, list[str]] = {}
        for each in sidecar.state.placements:
            if each.phase is Phase.WARM:
                warm.setdefault(owner(each.id), []).append(each.id)
        for uid, ids in warm.items():
            if len(ids) == 1:
                found.setdefault((pod.namespace, uid), set()).update(ids)
    return {key: frozenset(ids) for key, ids in found.items()}


def version_statuses(
    prefix: Prefix,
    warm_pods: Mapping[str, int],
    matched: Mapping[str, datetime],
    now: datetime,
) -> list[VersionStatus]:
    """Return the declared version and those before it that pods hold, newest first.

    ``warm_pods`` and ``matched`` are by version id: the pods that hold it warm, and the engines'
    latest match. An earlier version is listed once a pod holds it, for as long as it is kept.
    """
    written = {each.id: each for each in prefix.versions}
    current = [prefix.version] if prefix.version is not None else []
    listed = [
        version
        for version in prefix.earlier
        if warm_pods.get(version.id, 0) or short_id(version.id) in written
    ]

    def since(version: Version) -> datetime:
        known = written.get(short_id(version.id))
        return _whole(version.since or (known.since if known is not None else now))

    made = [
        _status(version, warm_pods.get(version.id, 0), matched.get(version.id), since(version), now)
        for version in (*current, *listed)[:MAX_VERSIONS]
    ]
    if [_shape(each) for each in made] != [_shape(each) for each in prefix.versions]:
        return made
    return [_steady(each, written[each.id], now) for each in made]


def _status(
    version: Version, warm_pods: int, matched: datetime | None, since: datetime, now: datetime
) -> VersionStatus:
    known = [at for at in (version.last_matched, matched) if at is not None]
    return VersionStatus(
        id=short_id(version.id),
        fingerprint=version.fingerprint,
        contentDigest=version.content_digest,
        warmPods=warm_pods,
        since=since,
        superseded=None if version.superseded is None else _whole(version.superseded),
        lastMatched=_whole(min(max(known), now)) if known else None,
    )


def _shape(status: VersionStatus) -> tuple[str, int, datetime | None]:
    return status.id, status.warmPods, status.superseded


def _steady(made: VersionStatus, written: VersionStatus, now: datetime) -> VersionStatus:
    """Return what is written, unless the match moved far enough to be written by itself."""
    before, after = written.lastMatched, made.lastMatched
    if before is None or before > now or before == after:
        return made
    if after is None or after - before < WRITE_STEP:
        return made.model_copy(update={"lastMatched": before})
    return made


def _whole(at: datetime) -> datetime:
    return at.replace(microsecond=0)
