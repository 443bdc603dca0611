"""Which endpoint answers a matched request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.pool import Pool
from promptprefix_router.choosing.prompt_chain import (
    BYTES_PER_TOKEN,
    CHUNK_TOKENS,
    NO_CHAIN,
    PromptChain,
    read_chain,
)
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.choosing.ring import place_of
from promptprefix_router.control.routes import Endpoint, Routes
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.precise.pod_blocks import PodBlocks
from promptprefix_router.precise.prompt_tokens import PromptTokens

FALLBACKS = 2
"""Next best endpoints that a decision names."""

SHORT_TAIL_TOKENS = 2 * CHUNK_TOKENS
"""What comes after a declared prefix that is warm is not worth knowing about if it is shorter."""

OWN_BYTES = 16 * 1024
"""So much of the end of a body tells a talk from others: all pickers look at the same bytes."""
_CRC_BITS = 0xFFFF_FFFF

_WITHOUT_PREFIX = (MatchKind.UNDECLARED, MatchKind.PARTIAL, MatchKind.MALFORMED)


class Outcome(StrEnum):
    """Why an endpoint was chosen; the same words stand in metrics and in the response header."""

    WARM = "warm"
    """A declared prefix, and an endpoint that holds it warm."""
    COLD = "cold"
    """A declared prefix that no ready endpoint holds warm."""
    HELD = "held"
    """No declared prefix; by its engine's own word the endpoint has more of the prompt cached than
    any other."""
    SEEN = "seen"
    """No declared prefix; the endpoint was sent a longer beginning of the prompt than any other."""
    SPILL = "spill"
    """Endpoints have more of the prompt cached, but they are too busy."""
    HASHED = "hashed"
    """No endpoint was sent any of the prompt: the one on which all pickers agree."""
    LEAST_LOADED = "least-loaded"
    """Nothing is known of the prompt; the least loaded endpoint."""
    UNROUTED = "unrouted"
    """No ready endpoint is known to serve the model: Envoy chooses by itself."""
    SHED = "shed"
    """A sheddable request, while every endpoint that could take it is saturated."""
    REFUSED = "refused"
    """An engine command, several tenants, or a cache salt that can't be set."""


class SpillReason(StrEnum):
    """Why a request went elsewhere than to the endpoints that have most of its prompt."""

    BOUND = "bound"
    """Each of them has as many active requests as one may have."""
    QUEUE = "queue"
    """Computing the prompt anew elsewhere costs less than their queue."""


class UndeclaredMode(StrEnum):
    """How undeclared prompts find what is cached of them."""

    APPROXIMATE = "approximate"
    """By what the picker itself has sent where."""
    PRECISE = "precise"
    """By what the engines say that they have cached, and what the picker has sent since; by what it
    has sent where nothing can be known."""
    LEAST_LOAD = "least-load"
    """Not at all."""


class Choice(NamedTuple):
    """The endpoint, if any, why, and the next best ones in order."""

    outcome: Outcome
    endpoint: Endpoint | None = None
    fallbacks: tuple[Endpoint, ...] = ()
    reason: SpillReason | None = None


class _Holders(NamedTuple):
    """Seats that have so many tokens of a prompt cached, as far as known."""

    cached: int
    seats: int


class _Request(NamedTuple):
    """What is known of a request. ``holders``: every candidate once, those that have most first.

    ``warm`` are the seats that hold its declared prefix, ``tokens`` is the length of its prompt,
    ``told`` are the seats of which the engines say what they hold.
    ``mean`` is the load of the candidates, and ``most`` what one with some of the prompt may have,
    with this request.
    """

    match: Match
    chain: PromptChain
    candidates: int
    warm: int
    tokens: int
    holders: Sequence[_Holders]
    told: int
    mean: float
    most: float
    alone: bytes | None
    """Its body, if there is no chain for want of need."""

    @property
    def declared(self) -> bool:
        """Whether it has a declared prefix."""
        return self.match.kind not in _WITHOUT_PREFIX

    @property
    def best(self) -> int:
        """Mask of the seats that have what matters most of the prompt; 0 if none has any."""
        if self.declared:
            return self.warm
        return self.holders[0].seats if self.holders[0].cached else 0

    @property
    def opening(self) -> int | None:
        """The place on the ring that is the same for all requests with the same beginning."""
        if self.declared and self.match.ids and self.match.ids[0]:
            return place_of(self.match.ids[0].encode())
        return self.chain.opening if self.chain.hashes else None

    @property
    def own(self) -> int | None:
        """The place on the ring that is the same for no other talk, if that is known."""
        if self.chain.hashes:
            return self.chain.ending
        if self.alone is None:
            return None
        # Of a long body the end tells talks apart, and how long it is.
        return place_of(b"%d" % crc32(self.alone[-OWN_BYTES:], len(self.alone) & _CRC_BITS))


class Chooser:
    """Chooses among ready endpoints that serve the model, by what `CostKnobs` says.

    Endpoints that Envoy's health checks find broken are left out while others remain. Where the
    cost leaves several, a place on the ring decides, so that every picker with the same table and
    loads chooses alike; only requests of whose prompt nothing is known take turns.

    ``history`` is None in the mode `UndeclaredMode.LEAST_LOAD`, ``blocks`` only in the mode
    `UndeclaredMode.PRECISE` not. ``clock`` is monotonic seconds. With ``saturated_at`` active
    requests an endpoint is saturated; 0: none ever is.
    """

    def __init__(
        self,
        ledger: LoadLedger,
        history: PromptHistory | None,
        knobs: CostKnobs,
        clock: Callable[[], float],
        blocks: PodBlocks | None = None,
        saturated_at: int = 0,
    ) -> None:
        self._blocks = blocks
        self._ledger = ledger
        self._history = history
        self._knobs = knobs
        self._clock = clock
        self._saturated_at = saturated_at
        self._pool = Pool()
        self._turn = -1

    def use(self, routes: Routes) -> None:
        """Choose among the endpoints of ``routes`` from now on, and forget all others."""
        before, self._pool = self._pool, self._pool.after(routes)
        self._ledger.seat(self._pool.seats)
        if self._history is not None:
            for seat in self._pool.replaced(before):
                self._history.forget(seat)
            self._history.resize(self._pool.rooms)
        if self._blocks is not None:
            self._blocks.seat(self._pool.seats)

    def forget(self, address: str) -> None:
        """Forget what was sent to an endpoint: its engine lost everything."""
        seat = self._pool.seats.get(address)
        if self._history is not None and seat is not None:
            self._history.forget(seat)

    def saturated(self, question: Question, match: Match) -> bool:
        """Whether all that could take a request are; without a known model any could."""
        if not self._saturated_at:
            return False
        self._ledger.forget_ended()
        able = self._candidates(question, match)
        able = able or self._allowed(self._pool.any_ready, question)
        return bool(able) and not able & self._ledger.below(self._saturated_at)

    def choose(
        self, question: Question, match: Match, prompt: PromptTokens | None = None
    ) -> Choice:
        """Choose for a request, and count it as load of the chosen endpoint.

        ``prompt`` are the tokens of an undeclared one, where they are known.
        """
        self._ledger.forget_ended()
        candidates = self._candidates(question, match)
        if not candidates:
            return Choice(Outcome.UNROUTED)
        request = self._request(question, match, candidates, prompt)
        seats = self._best_seats(request)
        seat = self._turn = seats[0]
        outcome, reason = self._outcome(request, seat)
        chosen, *fallbacks = [self._pool.endpoints[each] for each in seats]
        self._ledger.pick(chosen.address)
        if self._history is not None and request.chain.hashes:
            self._history.note(seat, request.chain.hashes, self._clock())
        if self._blocks is not None and prompt is not None:
            self._blocks.sent(prompt, seat, chosen.address)
        return Choice(outcome, chosen, tuple(fallbacks), reason)

    def _candidates(self, question: Question, match: Match) -> int:
        return self._allowed(self._pool.ready(match.model), question)

    def _allowed(self, ready: int, question: Question) -> int:
        if question.subset is not None:
            ready &= self._pool.mask(question.subset)
        return ready & ~self._ledger.unhealthy or ready

    def _request(
        self, question: Question, match: Match, candidates: int, prompt: PromptTokens | None
    ) -> _Request:
        estimate = len(question.body) // BYTES_PER_TOKEN if prompt is None else prompt.count
        declared = max(match.tokens or estimate, self._knobs.least_declared)
        warm = self._pool.warm(match.digests) & candidates
        known = self._history is None or (warm and estimate - declared < SHORT_TAIL_TOKENS)
        chain = NO_CHAIN if known else read_chain(question, match.salt)
        if prompt is None:
            holders, told = self._holders(candidates, chain, warm, declared), 0
        else:
            holders, told = self._precise_holders(candidates, chain, prompt)
        mean = (self._ledger.total(candidates) + 1) / candidates.bit_count()
        return _Request(
            match=match,
            chain=chain,
            candidates=candidates,
            warm=warm,
            tokens=max(estimate, declared) if warm else estimate,
            holders=holders,
            told=told,
            mean=mean,
            most=self._knobs.most_active(mean),
            alone=question.body if known and self._history is not None else None,
        )

    def _holders(
        self, candidates: int, chain: PromptChain, warm: int, declared: int
    ) -> Sequence[_Holders]:
        groups: dict[int, int] = {}
        rest = candidates
        if self._history is not None and chain.hashes:
            for depth, seats in self._history.depths(chain.hashes, candidates):
                tokens = depth * CHUNK_TOKENS
                rest ^= seats
                more = seats & warm if tokens < declared else 0
                if more:
                    groups[declared] = groups.get(declared, 0) | more
                if seats != more:
                    groups[tokens] = groups.get(tokens, 0) | seats ^ more
        if rest & warm:
            groups[declared] = groups.get(declared, 0) | rest & warm
            rest &= ~warm
        if rest:
            groups[0] = rest
        return [_Holders(cached, groups[cached]) for cached in sorted(groups, reverse=True)]

    def _precise_holders(
        self, candidates: int, chain: PromptChain, prompt: PromptTokens
    ) -> tuple[Sequence[_Holders], int]:
        """Return the holders of an undeclared prompt by its tokens, and who of them says so.

        Where a pod does not tell all that its engine has, what was sent there counts if it is more.
        """
        groups: list[tuple[int, bool, int]] = []
        unsure = candidates
        if self._blocks is not None:
            held = self._blocks.held(prompt, candidates)
            groups += [(tokens, True, seats) for tokens, seats in held.groups]
            unsure &= ~held.sure
        if self._history is not None and chain.hashes and unsure:
            for depth, seats in self._history.depths(chain.hashes, unsure):
                groups.append((min(depth * CHUNK_TOKENS, prompt.count), False, seats))
        groups.sort(reverse=True)
        holders: list[_Holders] = []
        left, told = candidates, 0
        for cached, tells, seats in groups:
            if some := seats & left:
                holders.append(_Holders(cached, some))
                left ^= some
                told |= some if tells else 0
        if left:
            holders.append(_Holders(0, left))
        return holders, told

    def _best_seats(self, request: _Request) -> Sequence[int]:
        """Return the best seat and the next best ones in order."""
        found: list[int] = []
        if not request.holders[0].cached and (opening := request.opening) is not None:
            # A busy one has nothing to offer here, so none takes more than the mean.
            fits = request.candidates & self._ledger.below(math.ceil(request.mean))
            found += self._pool.ring.first(opening, fits, 1 + FALLBACKS)
        most = request.most
        without = 0
        while len(found) <= FALLBACKS:
            for seat in found:
                without |= 1 << seat
            seats = self._cheapest(request, most, without)
            if not seats:
                break
            found += self._some_of(seats, request, 1 + FALLBACKS - len(found))
            most = math.inf
        return found

    def _cheapest(self, request: _Request, most: float, without: int) -> int:
        """Return the mask of the cheapest seats that aren't in ``without``; 0 if none is left."""
        found, least = 0, math.inf
        for holders in request.holders:
            seats = holders.seats & ~without
            if not seats:
                continue
            load, idlest = self._ledger.least(seats)
            if holders.cached and load + 1 > most:
                continue
            left = max(0, request.tokens - holders.cached)
            cost = left + load * self._knobs.tokens_per_active_request
            if cost < least:
                found, least = idlest, cost
        return found & request.warm or found

    def _some_of(self, seats: int, request: _Request, count: int) -> Sequence[int]:
        """Return at most so many of equally good seats in order."""
        if not seats & seats - 1:
            return (seats.bit_length() - 1,)
        # Where all have it, different talks go to different ones.
        place = request.own if seats & request.best else request.opening
        if place is not None:
            return self._pool.ring.first(place, seats, count)
        later = seats >> self._turn + 1 << self._turn + 1 or seats
        return ((later & -later).bit_length() - 1,)

    def _outcome(self, request: _Request, seat: int) -> tuple[Outcome, SpillReason | None]:
        best = request.best
        if best >> seat & 1:
            if request.declared:
                return Outcome.WARM, None
            return (Outcome.HELD if request.told >> seat & 1 else Outcome.SEEN), None
        if best:
            load, _ = self._ledger.least(best)
            return (
                Outcome.SPILL,
                SpillReason.BOUND if load + 1 > request.most else SpillReason.QUEUE,
            )
        if request.declared:
            return Outcome.COLD, None
        if request.chain.hashes:
            return Outcome.HASHED, None
        return Outcome.LEAST_LOADED, None
