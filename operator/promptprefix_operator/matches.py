"""What routers tell of requests that matched a version: the latest by version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from promptprefix.demand import let_go
from promptprefix.durations import parse_duration
from promptprefix.fleet import DEFAULT_RETENTION, Prefix, Retention, owner
from promptprefix.versions import MATCH_STEP
from promptprefix.wire import MatchReport
from promptprefix_operator.routers import Routers

_LONGEST_AGE_S = 365 * 86_400.0


@dataclass
class _Version:
    """One version's matches. ``shown`` is the latest that the planner knows of."""

    latest: datetime | None = None
    shown: datetime | None = None


@dataclass
class _Resource:
    """The versions of a resource by id.

    ``step`` is how far the match that is shown may lag; after ``ttl`` without one the resource may
    have been let go.
    """

    namespace: str
    step: timedelta
    ttl: timedelta | None
    versions: dict[str, _Version]


class Matches:
    """The latest match of every version that is declared or kept; of no others.

    What the planner is shown moves seldom, so that traffic alone plans and writes nothing: a shown
    match is replaced once it is older than a step, which is short enough that no idle time ends
    with an old one shown. ``changed`` is called when a match may end an idle time.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        routers: Routers,
        changed: Callable[[], None],
        retention: Retention = DEFAULT_RETENTION,
    ) -> None:
        self._now = now
        self._routers = routers
        self._changed = changed
        self._idle = retention.idle
        self._resources: dict[str, _Resource] = {}
        self._followed: tuple[Prefix, ...] = ()

    def __len__(self) -> int:
        return sum(len(each.versions) for each in self._resources.values())

    def take(self, report: MatchReport) -> int:
        """Take in a report; return how many of its versions are known in its tenant."""
        now, news, taken = self._now(), False, 0
        for match in report.matches:
            resource = self._resources.get(owner(match.id))
            version = resource.versions.get(match.id) if resource is not None else None
            if resource is None or version is None or resource.namespace != report.tenant:
                continue
            taken += 1
            age = min(max(0.0, report.sent - match.at), _LONGEST_AGE_S)
            at = now - timedelta(seconds=age)
            if version.latest is None or at > version.latest:
                version.latest = at
                news = news or _ends_idleness(resource, version, now)
        if news:
            self._changed()
        return taken

    def latest(self, uid: str, now: datetime) -> Mapping[str, datetime]:
        """Return the matches of a resource's versions to show at ``now``, by version id."""
        resource = self._resources.get(uid)
        if resource is None:
            return {}
        for version in resource.versions.values():
            if version.latest is not None and version.latest > now:
                version.latest = now  # the clock was set back
            if version.shown is None or not version.shown <= now < version.shown + resource.step:
                version.shown = version.latest
        found = resource.versions.items()
        return {id_: each.shown for id_, each in found if each.shown is not None}

    def follow(self, prefixes: Iterable[Prefix]) -> None:
        """Know the versions of these resources from now on, and forget all others."""
        followed = tuple(prefixes)
        before = {prefix.uid: prefix for prefix in self._followed}
        self._followed = followed
        for prefix in followed:
            if before.pop(prefix.uid, None) is not prefix:
                self._expect(prefix)
                self._resources[prefix.uid] = self._resource(prefix)
        for uid in before:
            del self._resources[uid]

    def _expect(self, prefix: Prefix) -> None:
        """Expect the routers that the leader before has heard, where a prefix is let go for long.

        Else all of them would be warmed again for the moment until the routers report.
        """
        if (
            prefix.uid not in self._resources
            and _ttl(prefix) is not None
            and let_go(prefix.conditions)
        ):
            self._routers.expect(prefix.namespace)

    def _resource(self, prefix: Prefix) -> _Resource:
        known = self._resources.get(prefix.uid)
        before = known.versions if known is not None else {}
        ttl = _ttl(prefix)
        steps = [MATCH_STEP, self._idle, *([ttl] if ttl is not None else [])]
        current = (prefix.version,) if prefix.version is not None else ()
        ids = [version.id for version in (*current, *prefix.earlier)]
        return _Resource(
            namespace=prefix.namespace,
            step=min(steps),
            ttl=ttl,
            versions={id_: before.get(id_) or _Version() for id_ in ids},
        )


def _ttl(prefix: Prefix) -> timedelta | None:
    spec = prefix.spec
    return None if spec is None or spec.idleTTL is None else parse_duration(spec.idleTTL)


def _ends_idleness(resource: _Resource, version: _Version, now: datetime) -> bool:
    """Whether the resource may have been let go for want of this match."""
    if resource.ttl is None:
        return False
    return version.shown is None or now >= version.shown + resource.ttl
