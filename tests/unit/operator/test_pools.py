"""InferencePools: what is read of them, when they are watched, and what fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from promptprefix.reasons import Reason
from promptprefix.selector import EVERY_POD
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.handlers import WatchEndedError, pool_registry_of
from promptprefix_operator.pools import Pools
from promptprefix_operator.salts import Salts
from promptprefix_operator.sources import Source, SourceKind, read_source
from tests.unit.operator.declared import Linter, later, read, resource

LLM = Source(SourceKind.POOL, "ml", "llm")
PATH = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
BY_POOL: dict[str, Any] = {"pods": {"inferencePoolRef": {"name": "llm"}}}


def pool(version: int = 1, name: str = "llm", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": "u-pool", "namespace": "ml", "name": name, "resourceVersion": str(version),
        },
        "spec": {"selector": {"matchLabels": labels}},
    }  # fmt: skip


class OverError(Exception):
    """The time of a test is over."""


class Bench:
    """A namespace's pools. ``error`` refuses to list them; ``ends`` are how its watches end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.until = 100.0
        self.items: list[dict[str, Any]] = []
        self.error: ApiError | None = None
        self.discovered = True
        self.asked = 0
        self.watches: list[float] = []
        self.ends: list[Callable[[], None]] = []
        self.slept: list[float] = []
        self.cluster = Cluster(lambda: None)
        self.pools = Pools(
            api=self,  # type: ignore[arg-type]
            cluster=self.cluster,
            namespace="ml",
            follow=self._follow,
            reread_seconds=27,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if path == "/apis":
            return {"groups": [{"name": "inference.networking.k8s.io"}] if self.discovered else []}
        if path == "/apis/inference.networking.k8s.io/v1":
            return {"resources": [{"name": "inferencepools"}]}
        assert (path, query) == (PATH, {"fieldSelector": "metadata.name=llm"})
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"items": self.items}

    async def _follow(self, stop: Callable[[], None]) -> None:
        self.watches.append(self.now)
        if not self.ends:
            raise OverError
        self.ends.pop(0)()
        raise WatchEndedError("cut")

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if self.now >= self.until:
            raise OverError

    async def keep(self) -> None:
        with pytest.raises(OverError):
            await self.pools.keep(lambda: None, self._passed)

    async def _passed(self) -> None:
        raise OverError

    @property
    def reason(self) -> Reason | None:
        found = self.cluster.text(LLM)
        assert found is not None
        return found.reason


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.cluster.see_resource(resource(**BY_POOL))
    return bench


@pytest.mark.parametrize(
    ("error", "items", "reason"),
    [
        (None, [pool(app="v")], None),
        (None, [], Reason.POOL_NOT_FOUND),
        (None, [pool(name="another", app="v")], Reason.POOL_NOT_FOUND),
        (None, [pool()], Reason.INVALID_POOL),
        (None, [pool(app="not a label")], Reason.INVALID_POOL),
        (None, [{**pool(), "spec": {}}], Reason.INVALID_POOL),
        (ApiError(403, "forbidden"), [], Reason.POOL_FORBIDDEN),
        (ApiError(404, "no such kind"), [], Reason.POOL_NOT_FOUND),
    ],
)
async def test_readings(
    bench: Bench, error: ApiError | None, items: list[dict[str, Any]], reason: Reason | None
) -> None:
    bench.error, bench.items = error, items
    await bench.pools.read(LLM)
    assert bench.reason is reason


async def test_what_the_watch_brings_meanwhile_is_newer(bench: Bench) -> None:
    async def late(path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        bench.cluster.see_text(LLM, read_source(LLM, pool(2, app="v")))
        return {"items": []}

    bench.get = late  # type: ignore[method-assign]
    await bench.pools.read(LLM)
    assert bench.reason is None


async def test_nothing_is_asked_while_no_resource_names_one() -> None:
    bench = Bench()
    await bench.keep()
    assert (bench.asked, bench.watches) == (0, [])


async def test_a_pool_is_read_and_then_watched(bench: Bench) -> None:
    bench.items = [pool(app="v")]
    await bench.keep()
    assert (bench.asked, bench.watches) == (1, [0.0])


@pytest.mark.parametrize("error", [ApiError(403, "forbidden"), ApiError(404, "no such kind")])
async def test_where_it_can_not_be_read_it_is_looked_at_again_at_times(
    bench: Bench, error: ApiError
) -> None:
    bench.error = error
    await bench.keep()
    assert (bench.slept, bench.watches) == ([27, 27, 27, 27], [])


async def test_a_new_kind_is_watched_once_discovery_knows_it(bench: Bench) -> None:
    bench.discovered = False
    await bench.keep()
    assert bench.watches == []
    bench.until, bench.discovered = 1_000, True
    await bench.keep()
    assert len(bench.watches) == 1


async def test_a_watch_that_fails_at_once_is_begun_ever_more_seldom(bench: Bench) -> None:
    bench.items = [pool(app="v")]
    bench.ends = [lambda: None] * 1_000
    await bench.keep()
    assert len(bench.watches) < 12


async def test_a_watch_that_lasted_is_begun_again_soon(bench: Bench) -> None:
    def last() -> None:
        bench.now += 100

    bench.items, bench.until = [pool(app="v")], 1e6
    bench.ends = [last] * 20
    await bench.keep()
    assert max(bench.slept) <= 0.5


async def test_an_api_server_that_is_away_is_waited_for(bench: Bench) -> None:
    bench.error = ApiError(0, "no connection")
    await bench.keep()
    assert bench.cluster.text(LLM) is None
    assert len(bench.slept) < 12


async def test_the_handler_takes_in_what_is_named_and_nothing_else(bench: Bench) -> None:
    async def login() -> Any:
        raise AssertionError

    [handler] = pool_registry_of(login, bench.cluster)._watching.get_all_handlers()

    async def happen(kind: str, body: dict[str, Any]) -> None:
        await asyncio.wait_for(handler.fn(event={"type": kind, "object": body}), 5)  # type: ignore[arg-type]

    await happen("ADDED", pool(app="v"))
    assert bench.reason is None
    await happen("MODIFIED", pool(2, app="w"))
    await happen("ADDED", pool(name="another", app="v"))
    found = bench.cluster.text(LLM)
    assert found is not None
    assert found.selector is not None
    assert found.selector.matchLabels == {"app": "w"}
    await happen("DELETED", pool(3, app="w"))
    assert bench.reason is Reason.POOL_NOT_FOUND


def test_the_selector_follows_the_pool_and_without_one_nothing_is_torn() -> None:
    cluster, declarations = Cluster(lambda: None), Declarations(Linter(), Salts())
    prefix = read(declarations, cluster, resource(**BY_POOL))
    assert prefix.refusal is not None
    assert prefix.refusal.reason is Reason.RECONCILING
    assert cluster.missing == {LLM}
    for version, labels in ((1, {"app": "v"}), (2, {"app": "w"})):
        cluster.see_text(LLM, read_source(LLM, pool(version, **labels)))
        [prefix] = declarations.prefixes(cluster, later())
        assert prefix.refusal is None
        assert prefix.version is not None
        assert prefix.selector is not None
        assert prefix.selector.matchLabels == labels
    cluster.see_text(LLM, read_source(LLM, pool(3)))
    [refused] = declarations.prefixes(cluster, later())
    assert refused.refusal is not None
    assert (refused.refusal.reason, refused.refusal.stalled) == (Reason.INVALID_POOL, True)
    assert refused.refusal.message.startswith("InferencePool llm in namespace ml: spec.selector")
    assert (refused.version, refused.earlier) == (None, (prefix.version,))
    assert refused.selector == EVERY_POD
    assert EVERY_POD.matches({})
    assert EVERY_POD.matches({"app": "v"})


def test_a_resource_that_takes_a_selector_forgets_the_pool() -> None:
    cluster, declarations = Cluster(lambda: None), Declarations(Linter(), Salts())
    read(declarations, cluster, resource(**BY_POOL))
    cluster.see_text(LLM, read_source(LLM, pool(app="v")))
    prefix = read(declarations, cluster, resource(version=2))
    assert cluster.referred == {}
    assert prefix.pool_selector is None
    assert prefix.selector is not None


async def test_pools_that_cannot_be_given_for_good_hold_up_nothing_else(bench: Bench) -> None:
    """A 500 for them alone: their namespace is read all the same, and what was known stays."""
    bench.error = ApiError(500, "conversion webhook failed")
    for _ in range(2):
        with pytest.raises(ApiError):
            await bench.pools.read(LLM)
    assert not await bench.pools.read(LLM)
    assert bench.reason is Reason.RECONCILING
    bench.error, bench.items = None, [pool(app="vllm")]
    assert await bench.pools.read(LLM)
    known = bench.cluster.text(LLM)
    assert known is not None
    assert known.selector is not None
    bench.error = ApiError(500, "conversion webhook failed")
    await bench.keep()
    assert bench.cluster.text(LLM) is known
    assert bench.slept[2:] == [27] * (len(bench.slept) - 2)
