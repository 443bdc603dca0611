"""How long it takes from the first sight of a version to warm on all its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from promptprefix.fleet import Prefix, Version
from promptprefix.reasons import ConditionType
from promptprefix.resource import Condition, PromptPrefixStatus
from promptprefix.versions import short_id


class WarmTimer:
    """Times each version of each resource once.

    What was warm already when it was first seen, after a restart of the operator, is not timed, nor
    what is not to be held then: a window would be in its time.
    """

    def __init__(self, clock: Callable[[], float], observe: Callable[[float], None]) -> None:
        self._clock = clock
        self._observe = observe
        self._running: dict[str, tuple[str, float | None]] = {}

    def observe(
        self, prefixes: Iterable[Prefix], statuses: Mapping[str, PromptPrefixStatus]
    ) -> None:
        """Take in one pass."""
        seen: dict[str, tuple[str, float | None]] = {}
        for prefix in prefixes:
            if prefix.version is None or prefix.uid not in statuses:
                continue
            conditions = statuses[prefix.uid].conditions
            before = self._running.get(prefix.uid)
            if before is not None and before[0] == prefix.version.id:
                since = before[1]
            else:
                since = None if _was_warm(prefix, prefix.version) else self._clock()
            if since is not None and _holds(ConditionType.WARM, conditions):
                self._observe(self._clock() - since)
                since = None
            elif not _holds(ConditionType.ACTIVE, conditions):
                since = None
            seen[prefix.uid] = (prefix.version.id, since)
        self._running = seen


def _was_warm(prefix: Prefix, version: Version) -> bool:
    """Whether the resource's status says that this very version is warm."""
    listed = next((each.id for each in prefix.versions), "")
    return listed == short_id(version.id) and _holds(ConditionType.WARM, prefix.conditions)


def _holds(kind: ConditionType, conditions: Iterable[Condition]) -> bool:
    return any(each.type == kind and each.status == "True" for each in conditions)
