"""What pods hold of a prompt by the word of their feeds, for whoever chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from promptprefix.block_stream import BlockKeys, Hello
from promptprefix_router.precise.block_index import BlockIndex
from promptprefix_router.precise.prompt_tokens import PromptTokens


class FeedState(StrEnum):
    """How much a pod's feed says."""

    WHOLE = "whole"
    """All that its engine has cached."""
    PARTIAL = "partial"
    """Some of it: the feed has just begun, began after its engine, or there was no room."""
    LOST = "lost"
    """Nothing: it isn't connected."""


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens of a prompt, and the mask of the seats that hold just so many, most first.

    Of the seats in ``sure`` this is the whole truth: those without tokens hold nothing.
    """

    groups: Sequence[tuple[int, int]]
    sure: int


@dataclass(slots=True)
class _Feed:
    hello: Hello
    told: bool = False
    """Whether all that was held at the greeting was told."""
    fits: bool = True
    """Whether there was room for all."""

    @property
    def state(self) -> FeedState:
        whole = self.told and self.fits and self.hello.complete
        return FeedState.WHOLE if whole else FeedState.PARTIAL


class PodBlocks:
    """Blocks by pod, for pods on seats. ``clock`` is monotonic seconds.

    ``emptied`` is told the address of a pod whose engine lost everything: what else is believed of
    it is wrong too.
    """

    def __init__(
        self,
        index: BlockIndex,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._clock = clock
        self.emptied: Callable[[str], None] = lambda _address: None
        self.changed: Callable[[], None] = lambda: None
        self._keys: BlockKeys | None = None
        self._pods: Collection[str] = ()
        self._feeds: dict[str, _Feed] = {}
        self._seats: Mapping[str, int] = {}
        self._sure = 0
        self._kinds: dict[tuple[int, int, tuple[str, ...]], int] = {}

    @property
    def ready(self) -> bool:
        """Whether anything can be told: some pod's feed is there."""
        return self._keys is not None and bool(self._kinds)

    @property
    def states(self) -> Mapping[FeedState, int]:
        """Number of pods with a feed, by its state."""
        counts = dict.fromkeys(FeedState, 0)
        for pod in self._pods:
            feed = self._feeds.get(pod)
            counts[FeedState.LOST if feed is None else feed.state] += 1
        return counts

    def seat(self, seats: Mapping[str, int]) -> None:
        """Say on which seats the pods are from now on."""
        self._seats = seats
        self._index.seat(seats)
        self._sort()

    def use(self, keys: BlockKeys | None, pods: Collection[str]) -> None:
        """Know these keys, and of these pods (addresses) that they have a feed."""
        self._keys = keys
        self._pods = pods
        self._sort()

    def begin(self, pod: str, hello: Hello) -> None:
        """A feed begins, or begins anew: nothing said before holds."""
        before = self._feeds.get(pod)
        self._index.empty(pod)
        self._feeds[pod] = _Feed(hello)
        if before is not None and before.hello.epoch != hello.epoch:
            self.emptied(pod)
        self._sort()

    def finish(self, pod: str) -> None:
        """All that was held at the greeting has been told."""
        self._feeds[pod].told = True
        self._sort()

    def add(self, pod: str, names: Collection[bytes]) -> None:
        """A pod holds these."""
        feed = self._feeds[pod]
        if not self._index.add(pod, names) and feed.fits:
            feed.fits = False
            self._sort()

    def remove(self, pod: str, names: Collection[bytes]) -> None:
        """A pod holds these no more."""
        self._index.remove(pod, names)

    def clear(self, pod: str) -> None:
        """A pod holds nothing."""
        self._index.empty(pod)
        feed = self._feeds[pod]
        if not feed.fits:
            feed.fits = True
            self._sort()
        self.emptied(pod)

    def lose(self, pod: str) -> None:
        """Nothing is known of a pod any more."""
        self._index.empty(pod)
        if self._feeds.pop(pod, None) is not None:
            self._sort()

    def sweep(self) -> None:
        """Do one step of taking out what nobody holds any more."""
        if self._index.unswept:
            self._index.sweep()

    def tells(self, pods: Iterable[str]) -> bool:
        """Return whether the feed of any of these pods (addresses) is there."""
        return self._keys is not None and any(pod in self._feeds for pod in pods)

    def held(self, prompt: PromptTokens, among: int) -> Held:
        """Return what the seats of the mask ``among`` hold of a prompt."""
        groups: list[tuple[int, int]] = []
        now = self._clock()
        for (block_size, every, _), names, fed in self._named(prompt, among):
            step = block_size * every
            found = self._index.depths(names, fed, now)
            groups += [(depth * step, seats) for depth, seats in found]
        groups.sort(reverse=True)
        return Held(groups, self._sure & among)

    def sent(self, prompt: PromptTokens, seat: int, address: str) -> None:
        """Take note that a prompt was sent to a pod: it will hold it soon."""
        for _, names, _ in self._named(prompt, 1 << seat):
            self._index.expect(address, names, self._clock())

    def _named(
        self, prompt: PromptTokens, among: int
    ) -> list[tuple[tuple[int, int, tuple[str, ...]], Sequence[bytes], int]]:
        keys = self._keys
        if keys is None:
            return []
        found = []
        for kind, seats in self._kinds.items():
            if seats & among:
                block_size, every, bases = kind
                adapter = prompt.model not in bases
                names = prompt.names(keys, block_size, every, adapter=adapter)
                found.append((kind, names, seats & among))
        return found

    def _sort(self) -> None:
        """Sort seats by what decides the names of blocks there; one kind is the rule."""
        self._sure = 0
        self._kinds = {}
        for pod, feed in self._feeds.items():
            seat, hello = self._seats.get(pod), feed.hello
            if seat is None or not hello.block_size:
                continue
            kind = (hello.block_size, hello.every, hello.bases)
            self._kinds[kind] = self._kinds.get(kind, 0) | 1 << seat
            if feed.state is FeedState.WHOLE:
                self._sure |= 1 << seat
        self.changed()
