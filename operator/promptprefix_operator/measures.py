"""How large pods found versions to be: remembered after the pod that said so has let go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from promptprefix.fleet import Prefix, Size
from promptprefix.wire import PlacementState, SidecarState

MAX_SIZES = 4
"""Sizes of one version: engines differ in block size, and may in tokenizer or chat template."""


class Measures:
    """The sizes of every version that is declared or kept, by pods of its namespace; of no others.

    A version that was measured and found no room would else be taken for as small as it was
    estimated, and placed again. A pod that reports another size than before takes the former back,
    and one that is gone is outvoted.
    """

    def __init__(self) -> None:
        self._pods: dict[str, dict[Size, str]] = {}
        self._namespaces: dict[str, str] = {}
        self._told: dict[str, tuple[Size, ...]] = {}
        self._read: dict[str, SidecarState] = {}

    def __len__(self) -> int:
        return sum(map(len, self._pods.values()))

    @property
    def sizes(self) -> Mapping[str, tuple[Size, ...]]:
        """The sizes by version id, smallest first."""
        return dict(self._told)

    def follow(self, prefixes: Iterable[Prefix]) -> None:
        """Know the versions of these resources from now on, and forget all others."""
        namespaces = {
            version.id: prefix.namespace
            for prefix in prefixes
            for version in (prefix.version, *prefix.earlier)
            if version is not None
        }
        if namespaces == self._namespaces:
            return
        if namespaces.keys() - self._pods.keys():
            self._read = {}  # what was reported of a version before it was known counts too
        self._namespaces = namespaces
        self._pods = {id_: self._pods.get(id_, {}) for id_ in namespaces}
        self._told = {id_: told for id_, told in self._told.items() if id_ in namespaces}

    def read(self, states: Mapping[str, SidecarState], namespaces: Mapping[str, str]) -> None:
        """Take in what pods report; what was read before is passed over.

        Both are by pod uid; a pod without a known namespace is read once it has one.
        """
        known = {uid: state for uid, state in states.items() if uid in namespaces}
        for uid, state in known.items():
            if self._read.get(uid) is state or state.engine.block_size <= 0:
                continue
            for placement in state.placements:
                own = self._namespaces.get(placement.id) == namespaces[uid]
                if own and placement.tokens > 0:
                    self._take(uid, state.engine.block_size, placement, states.keys())
        self._read = known

    def _take(
        self, uid: str, block_size: int, placement: PlacementState, connected: Set[str]
    ) -> None:
        known = self._pods[placement.id]
        size = (block_size, placement.tokens, placement.heads)
        for other, by in list(known.items()):
            replaced = by not in connected and other[0] == block_size
            if other != size and (by == uid or replaced):
                del known[other]
        if known.get(size) != uid:
            known.pop(size, None)
            known[size] = uid
        while len(known) > MAX_SIZES:
            del known[next(iter(known))]
        told = tuple(sorted(known))
        if told != self._told.get(placement.id):
            self._told[placement.id] = told
