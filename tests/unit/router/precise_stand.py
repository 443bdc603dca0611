"""A picker in the precise mode over fake engines and feeds, for its tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from promptprefix.block_stream import DEFAULT_EVERY, BlockKeys, Hello
from promptprefix.wire import RouteEndpoint, RoutePrefix, RouteTable, TenantSalt
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.match_tally import MatchTally
from promptprefix_router.control.routes import Routes
from promptprefix_router.decision import Decision
from promptprefix_router.http_connection import Answer, UnreachableError
from promptprefix_router.matching.matcher import Matcher, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.metrics import RouterMetrics
from promptprefix_router.picker import Picker
from promptprefix_router.precise.block_index import BlockIndex
from promptprefix_router.precise.pod_blocks import PodBlocks
from promptprefix_router.precise.precise_metrics import PreciseMetrics
from promptprefix_router.precise.precise_mode import PreciseMode
from promptprefix_router.precise.prompt_tokens import PromptTokens
from promptprefix_router.precise.token_reader import TokenReader

from .samples import MODEL, TENANT, chooser, endpoint, table

CHAT = "/v1/chat/completions"
KEYS = BlockKeys.of(bytes(32))
HELLO = Hello("e1", 16, DEFAULT_EVERY, (MODEL,))
TEXT = "Some long text that nobody declared. " * 60


def address(last: int) -> str:
    """Return the address of 10.0.0.``last``."""
    return f"10.0.0.{last}:8000"


def tokens_of(text: str) -> list[int]:
    """Return what the fake engine makes of a text: a token for each four characters."""
    encoded = text.encode()
    parts = (encoded[at : at + 4] for at in range(0, len(encoded), 4))
    return [int.from_bytes(part, "little") for part in parts]


def names_of(
    text: str, *, salt: str = "", model: str = MODEL, adapter: bool = False
) -> Sequence[bytes]:
    """Return the names of a prompt's blocks, as a feed tells them."""
    prompt = PromptTokens.of(model, tokens_of(text), salt)
    return prompt.names(KEYS, HELLO.block_size, HELLO.every, adapter=adapter)


def asked(text: str = TEXT, **changes: object) -> Question:
    """Return a completion: its text alone is the prompt."""
    body = json.dumps({"model": MODEL, "prompt": text, **changes}).encode()
    return Question("/v1/completions", body)


class PreciseStand:
    """Some pods; engines answer with tokens unless ``away``, or wait for ``hold``."""

    def __init__(self, pods: int = 4, *, prefixes: tuple[RoutePrefix, ...] = ()) -> None:
        self.now = 100.0
        self.away = False
        self.questions: list[bytes] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.told: list[bool] = []
        memo = FingerprintMemo(16)
        self.metrics = RouterMetrics(memo, time.monotonic)
        self.blocks = PodBlocks(BlockIndex(10_000), lambda: self.now)
        reader = TokenReader(5.0, clock=lambda: self.now, post=self._post)
        self.counts = PreciseMetrics(
            self.metrics.registry, lambda: self.blocks.states, lambda: 0, lambda: 0, lambda: 0
        )
        self.mode = PreciseMode(
            self.blocks, reader, self.counts, lambda: self.now, self.told.append
        )
        self.ledger = LoadLedger(lambda: self.now)
        made = chooser(self.ledger, history=PromptHistory(10_000), blocks=self.blocks)
        self.blocks.emptied = made.forget
        self.picker = Picker(
            Matcher(memo),
            made,
            MatchTally(time.time),
            self.metrics,
            time.perf_counter,
            tokens=self.mode,
        )
        self.use(*(endpoint(n, blocks_port=1) for n in range(1, pods + 1)), prefixes=prefixes)

    async def _post(self, host: str, port: int, address: str, path: str, body: bytes) -> Answer:
        self.questions.append(body)
        await self.hold.wait()
        if self.away:
            raise UnreachableError("away")
        asked = json.loads(body)
        text = asked["prompt"] if "prompt" in asked else json.dumps(asked["messages"])
        return Answer(200, json.dumps({"tokens": tokens_of(text)}).encode())

    def use(
        self,
        *endpoints: RouteEndpoint,
        prefixes: tuple[RoutePrefix, ...] = (),
        tenants: tuple[TenantSalt, ...] = (),
    ) -> None:
        """Put a route table in force."""
        told = table(*endpoints, prefixes=prefixes)
        told = RouteTable.model_validate({**dict(told), "tenants": tenants})
        routes = Routes.from_table(told, TENANT)
        self.picker.use(routes)
        self.mode.use(routes)
        self.blocks.use(KEYS, frozenset(each.address for each in routes.endpoints))

    def feed(self, last: int, names: Sequence[bytes] = (), hello: Hello = HELLO) -> None:
        """Have a feed of 10.0.0.``last`` that told all."""
        self.blocks.begin(address(last), hello)
        self.blocks.add(address(last), names)
        self.blocks.finish(address(last))

    async def ask(self, question: Question) -> tuple[str, str]:
        """Return the address and the summary of a decision."""
        decision = self.picker.consult(question)
        if not isinstance(decision, Decision):
            decision = await decision
        assert decision.endpoint is not None
        self.ledger.end(decision.endpoint.address)
        return decision.endpoint.address, decision.summary

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric."""
        value = self.metrics.registry.get_sample_value(f"promptprefix_router_{name}", labels)
        return value or 0.0

    def fallbacks(self) -> dict[str, float]:
        """Return the reasons of fallbacks that occurred."""
        name = "promptprefix_router_precise_fallbacks_total"
        return {
            sample.labels["reason"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }
