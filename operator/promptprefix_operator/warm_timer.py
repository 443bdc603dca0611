"""How long it takes from the first sight of a version to warm on all its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from promptprefix.fleet import Prefix
from promptprefix.reasons import ConditionType
from promptprefix.resource import Condition, PromptPrefixStatus

_Sight = tuple[int, str]
"""Generation and version."""


class WarmTimer:
    """Times each version of each resource once.

    What was warm already when it was first seen, after a restart of the operator, is not timed, nor
    what is not to be held then: a window would be in its time.
    """

    def __init__(self, clock: Callable[[], float], observe: Callable[[float], None]) -> None:
        self._clock = clock
        self._observe = observe
        self._running: dict[str, tuple[_Sight, float | None]] = {}

    def observe(
        self, prefixes: Iterable[Prefix], statuses: Mapping[str, PromptPrefixStatus]
    ) -> None:
        """Take in one pass."""
        seen: dict[str, tuple[_Sight, float | None]] = {}
        for prefix in prefixes:
            if prefix.version is None or prefix.uid not in statuses:
                continue
            conditions = statuses[prefix.uid].conditions
            sight = (prefix.generation, prefix.version.id)
            before = self._running.get(prefix.uid)
            if before is not None and before[0] == sight:
                since = before[1]
            else:
                since = (
                    None if _holds(ConditionType.WARM, prefix.conditions, prefix) else self._clock()
                )
            if since is not None and _holds(ConditionType.WARM, conditions, prefix):
                self._observe(self._clock() - since)
                since = None
            elif not _holds(ConditionType.ACTIVE, conditions, prefix):
                since = None
            seen[prefix.uid] = (sight, since)
        self._running = seen


def _holds(kind: ConditionType, conditions: Iterable[Condition], prefix: Prefix) -> bool:
    return any(
        condition.type == kind
        and condition.status == "True"
        and condition.observedGeneration == prefix.generation
        for condition in conditions
    )
