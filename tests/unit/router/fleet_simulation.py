"""A simulated fleet: engines with a cache and a queue behind choosers. Its clock is its own."""

from __future__ import annotations

import heapq
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import crc32

from promptprefix.block_stream import BlockKeys, Hello
from promptprefix_router.choosing.chooser import Chooser, Outcome
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.engine_reader import blended
from promptprefix_router.choosing.load import LoadLedger, LoadReading
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.matcher import Match, MatchKind, Question
from promptprefix_router.precise.block_index import BlockIndex
from promptprefix_router.precise.pod_blocks import PodBlocks
from promptprefix_router.precise.prompt_tokens import PromptTokens

from .samples import MODEL, endpoint, routes

BLOCK = 64
"""Tokens of a block; a token is a word of four bytes."""
PREFILL_S = 1 / 10_000
"""Seconds to compute one token of a prompt."""
DECODE_S = 0.015
"""Seconds to make one token of an answer, alone on an engine."""
CROWD_S = 0.0003
"""More seconds for each other request there."""
ENGINE_READINGS = 10
"""So many readings of a chooser's own requests for each of the engines' own numbers."""
EVENT_S = 0.1
"""Seconds from the end of a prompt's computation to the event that tells of its blocks."""
KEYS = BlockKeys.of(bytes(32))
HELLO = Hello("e1", BLOCK, 1, (MODEL,))
UNDECLARED = Match(MatchKind.UNDECLARED, MODEL)


@dataclass(frozen=True)
class Ask:
    """A request: pieces of text by name, with their tokens, and how long the answer is."""

    at: float
    pieces: tuple[tuple[str, int], ...]
    answer: int = 200
    match: Match = UNDECLARED

    @property
    def question(self) -> Question:
        """What a door asks."""
        messages = [
            {"role": "user" if number else "system", "content": _text(name, tokens)}
            for number, (name, tokens) in enumerate(self.pieces)
        ]
        body = json.dumps({"model": MODEL, "messages": messages})
        return Question("/v1/chat/completions", body.encode())

    @property
    def blocks(self) -> Sequence[tuple[str, int]]:
        """Whole blocks of the prompt, each named by all that is before it."""
        found: list[tuple[str, int]] = []
        before = ""
        for name, tokens in self.pieces:
            before = f"{before}/{name}"
            found += [(before, number) for number in range(tokens // BLOCK)]
        return found

    @property
    def prompt(self) -> PromptTokens:
        """Its tokens, in the same blocks."""
        return _tokens(tuple((name, tokens // BLOCK) for name, tokens in self.pieces))

    @property
    def names(self) -> Sequence[bytes]:
        """Names of its blocks, one for each of `blocks`."""
        return self.prompt.names(KEYS, BLOCK, 1, adapter=False)


@lru_cache(4096)
def _tokens(pieces: tuple[tuple[str, int], ...]) -> PromptTokens:
    parts = (crc32(name.encode()).to_bytes(4, "little") * blocks * BLOCK for name, blocks in pieces)
    return PromptTokens(MODEL, b"".join(parts) + bytes(4))


def _text(name: str, tokens: int) -> str:
    words = -(-4 * tokens // (len(name) + 1))
    return f"{name} " * words


@dataclass
class Engine:
    """One engine. It computes prompts one after the other, and answers all at once."""

    capacity: int = 4096
    cache: OrderedDict[tuple[str, int], None] = field(default_factory=OrderedDict)
    computed: Counter[str] = field(default_factory=Counter)
    active: int = 0
    most: int = 0
    served: int = 0
    free_at: float = 0.0
    lost: list[tuple[str, int]] = field(default_factory=list)
    """Blocks that went with the last request."""

    def take(self, ask: Ask) -> tuple[float, float]:
        """Take a request; return when its first token comes, and when it ends."""
        blocks = ask.blocks
        cached = next((n for n, block in enumerate(blocks) if block not in self.cache), len(blocks))
        for name, _ in blocks[cached:]:
            self.computed[name] += BLOCK
        for block in reversed(blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        self.lost = []
        while len(self.cache) > self.capacity:
            self.lost.append(self.cache.popitem(last=False)[0])
        tokens = sum(size for _, size in ask.pieces) - cached * BLOCK
        self.active += 1
        self.served += 1
        self.most = max(self.most, self.active)
        first = max(ask.at, self.free_at) + tokens * PREFILL_S
        self.free_at = first
        return first, first + ask.answer * (DECODE_S + CROWD_S * (self.active - 1))


@dataclass
class Fleet:
    """Engines behind one or more choosers that take turns and don't talk."""

    size: int
    choosers: int = 1
    knobs: CostKnobs = field(default_factory=CostKnobs)
    approximate: bool = True
    precise: bool = False
    """Every engine tells of its blocks, and the tokens of undeclared prompts are known."""
    engines_read: bool = True
    warm: dict[int, tuple[str, ...]] = field(default_factory=dict)
    reading_s: float = 0.1
    """Seconds between two readings of a chooser's own requests."""
    count_from_s: float = 0.0
    """When outcomes begin to count."""
    now: float = 0.0

    def __post_init__(self) -> None:
        """Build the parts."""
        self.engines = {f"10.0.0.{n}:8000": Engine() for n in range(1, self.size + 1)}
        self.routes = self.table()
        self.blocks: list[PodBlocks] = []
        self._events: list[tuple[float, int, str, bool, Sequence[bytes]]] = []
        self._names: dict[tuple[str, int], bytes] = {}
        self._told = 0
        self.parts = [self._chooser() for _ in range(self.choosers)]
        self.outcomes: Counter[Outcome] = Counter()
        self.waits: list[float] = []
        self._sent: list[Counter[str]] = [Counter() for _ in range(self.choosers)]
        self._begun = [0] * self.choosers
        self._ends: list[tuple[float, int, str]] = []
        self._read_at = 0.0
        self._readings = 0
        self._others: dict[tuple[int, str], float] = {}

    def table(self) -> Routes:
        """Return the route table."""
        return routes(*(endpoint(n, warm=self.warm.get(n, ())) for n in range(1, self.size + 1)))

    def _chooser(self) -> tuple[Chooser, LoadLedger]:
        ledger = LoadLedger(lambda: self.now)
        history = PromptHistory(100_000) if self.approximate else None
        blocks = PodBlocks(BlockIndex(1_000_000), lambda: self.now) if self.precise else None
        chooser = Chooser(ledger, history, self.knobs, lambda: self.now, blocks)
        chooser.use(self.routes)
        if blocks is not None:
            blocks.emptied = chooser.forget
            blocks.use(KEYS, frozenset(self.engines))
            for address in self.engines:
                blocks.begin(address, HELLO)
                blocks.finish(address)
            self.blocks.append(blocks)
        return chooser, ledger

    def reset(self, address: str) -> None:
        """Empty the cache of an engine, which tells of it."""
        self.engines[address].cache.clear()
        self._events = [each for each in self._events if each[2] != address]
        heapq.heapify(self._events)
        for blocks in self.blocks:
            blocks.clear(address)

    def _tell(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            _, _, address, stored, names = heapq.heappop(self._events)
            for blocks in self.blocks:
                (blocks.add if stored else blocks.remove)(address, names)

    def _note(self, ask: Ask, address: str, first: float) -> None:
        """Have the engine tell of what a request stored and evicted."""
        self._names |= dict(zip(ask.blocks, ask.names, strict=True))
        lost = [self._names[block] for block in self.engines[address].lost]
        for stored, names in ((False, lost), (True, ask.names)):
            if names:
                self._told += 1
                event = (first + EVENT_S, self._told, address, stored, names)
                heapq.heappush(self._events, event)

    def serve(self, asks: Iterable[Ask]) -> None:
        """Serve requests in order of time, to their ends."""
        for number, ask in enumerate(sorted(asks, key=lambda ask: ask.at)):
            self._advance(ask.at)
            which = number % self.choosers
            self._tell(ask.at)
            tokens = ask.prompt if self.precise and ask.match is UNDECLARED else None
            choice = self.parts[which][0].choose(ask.question, ask.match, tokens)
            assert choice.endpoint is not None
            address = choice.endpoint.address
            if ask.at >= self.count_from_s:
                self.outcomes[choice.outcome] += 1
            first, end = self.engines[address].take(ask)
            self.waits.append(first - ask.at)
            if self.precise:
                self._note(ask, address, first)
            self._sent[which][address] += 1
            self._begun[which] += 1
            heapq.heappush(self._ends, (end, which, address))
        self._advance(float("inf"))

    def computed(self, name: str) -> int:
        """Return on how many engines the piece of text that begins prompts was computed."""
        return sum(engine.computed[f"/{name}"] > 0 for engine in self.engines.values())

    @property
    def most(self) -> list[int]:
        """The most active requests on each engine."""
        return [engine.most for engine in self.engines.values()]

    @property
    def served(self) -> list[int]:
        """Requests of each engine."""
        return [engine.served for engine in self.engines.values()]

    def _advance(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            end, which, address = self._ends[0]
            while self._read_at <= end:
                self._read(self._read_at)
            heapq.heappop(self._ends)
            self.engines[address].active -= 1
            self._sent[which][address] -= 1
        while self._read_at <= until < float("inf"):
            self._read(self._read_at)
        self.now = until

    def _read(self, now: float) -> None:
        self.now = now
        for (_, ledger), sent, begun in zip(self.parts, self._sent, self._begun, strict=True):
            ledger.begin_reading()
            ledger.finish_reading(LoadReading(dict(sent), served=begun))
            if self.engines_read and self._readings % ENGINE_READINGS == 0:
                for address, engine in self.engines.items():
                    key = id(ledger), address
                    latest = engine.active - sent[address]
                    self._others[key] = blended(self._others.get(key), latest)
                    ledger.count_others(address, round(self._others[key]))
        self._readings += 1
        self._read_at = now + self.reading_s
