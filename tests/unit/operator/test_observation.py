"""Readings of a namespace: everything, texts that are due, and the sweep."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from promptprefix.reasons import Reason
from promptprefix_operator.api_server import ApiError, Listing
from promptprefix_operator.sources import Source, SourceKind, absent, text_in
from tests.unit.operator.observation_bench import (
    CONFIG_MAPS,
    HIDDEN,
    PODS,
    PREFIXES,
    TEXTS,
    Bench,
    named,
    resource,
    secret,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_reading_takes_in_resources_pods_and_the_texts_they_name(bench: Bench) -> None:
    api, cluster = bench.api, bench.cluster
    api.lists[PREFIXES] = [
        resource("a", configMapRef="texts"),
        resource("b", configMapRef="none"),
        resource("c"),
        resource("d", secretRef="hidden"),
    ]
    api.lists[PODS] = [named("p", status={"podIP": "10.0.0.1"})]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"}), named("other")]
    api.secrets["hidden"] = secret("h", 1)
    await bench.observer.read()
    assert set(cluster.resources) == {"u-a", "u-b", "u-c", "u-d"}
    assert [each.address for each in cluster.pods.values()] == ["10.0.0.1"]
    assert (bench.payload(TEXTS), bench.payload(HIDDEN)) == ("x", "h")
    assert bench.reason(Source(SourceKind.CONFIG_MAP, "ml", "none")) is Reason.CONTENT_NOT_FOUND
    assert cluster.missing == frozenset()
    assert sorted(api.asked) == ["hidden", "metadata.name=none", "metadata.name=texts"]


async def test_a_reading_takes_in_the_pools_and_the_sweep_their_end(bench: Bench) -> None:
    by_pool = resource("a")
    by_pool["spec"]["pods"] = {"inferencePoolRef": {"name": "llm"}}
    bench.api.lists[PREFIXES] = [by_pool]
    bench.api.pools = [named("llm", spec={"selector": {"matchLabels": {"app": "v"}}})]
    source = Source(SourceKind.POOL, "ml", "llm")
    await bench.observer.read()
    assert bench.reason(source) is None
    bench.api.pools = []
    await bench.observer.sweep()
    assert bench.reason(source) is Reason.POOL_NOT_FOUND


async def test_a_second_reading_drops_what_went_meanwhile_here_and_nowhere_else(
    bench: Bench,
) -> None:
    bench.cluster.see_pod(named("far", namespace="theirs"))
    bench.api.lists[PREFIXES] = [resource("a"), resource("b")]
    bench.api.lists[PODS] = [named("p"), named("q")]
    await bench.observer.read()
    bench.api.lists[PREFIXES].pop()
    bench.api.lists[PODS].pop()
    await bench.observer.read()
    assert set(bench.cluster.resources) == {"u-a"}
    assert set(bench.cluster.pods) == {"u-p", "u-far"}


async def test_before_discovery_knows_the_resource_no_watch_would_see_it(bench: Bench) -> None:
    bench.api.served = False
    with pytest.raises(ApiError, match="not served yet"):
        await bench.observer.read()


async def test_the_sweep_drops_what_is_gone_and_keeps_what_came_meanwhile(bench: Bench) -> None:
    api, cluster = bench.api, bench.cluster
    api.lists[PREFIXES] = [resource("a", configMapRef="texts"), resource("b")]
    api.lists[PODS] = [named("p"), named("q")]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"})]
    await bench.observer.read()
    api.lists[PREFIXES].pop()
    api.lists[PODS].pop()
    api.lists[CONFIG_MAPS].clear()
    listing = api.list_all

    async def list_all(path: str) -> Listing:
        found = await listing(path)
        cluster.see_pod(named("new"))
        return found

    api.list_all = list_all  # type: ignore[method-assign]
    await bench.observer.sweep()
    assert set(cluster.resources) == {"u-a"}
    assert set(cluster.pods) == {"u-p", "u-new"}
    assert bench.reason(TEXTS) is Reason.CONTENT_NOT_FOUND


async def test_an_old_absence_does_not_hide_a_config_map_that_came_meanwhile(bench: Bench) -> None:
    bench.cluster.see_resource(resource("a", configMapRef="texts"))
    getting = bench.api.get

    async def get(path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        found = await getting(path, query)
        came = named("texts", data={"systemInstructions": "x"})
        bench.cluster.see_text(TEXTS, text_in(TEXTS, came))
        return found

    bench.api.get = get  # type: ignore[assignment, method-assign]
    await bench.observer.read_texts()
    assert bench.payload(TEXTS) == "x"


async def test_an_old_sight_does_not_bring_back_a_config_map_that_went_meanwhile(
    bench: Bench,
) -> None:
    api = bench.api
    api.lists[PREFIXES] = [resource("a", configMapRef="texts")]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"})]
    await bench.observer.read()
    getting = api.get

    async def get(path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        found = await getting(path, query)
        bench.cluster.see_text(TEXTS, absent(TEXTS))
        return found

    api.get = get  # type: ignore[assignment, method-assign]
    await bench.observer.sweep()
    assert bench.reason(TEXTS) is Reason.CONTENT_NOT_FOUND


def at(version: int, body: dict[str, Any], text: str = "x") -> dict[str, Any]:
    """Return a resource, or a ConfigMap, as written at a resourceVersion."""
    body = copy.deepcopy(body)
    body["metadata"]["resourceVersion"] = str(version)
    if "data" in body:
        body["data"] = {"systemInstructions": text}
    return body


@pytest.mark.parametrize("restored", [True, False])
async def test_after_etcd_was_restored_older_versions_are_news(
    bench: Bench, restored: bool
) -> None:
    api, cluster, observer = bench.api, bench.cluster, bench.observer
    declared = [resource("a", secretRef="hidden"), resource("b", configMapRef="texts")]
    held = named("texts", data={})
    api.lists[PREFIXES] = [at(900, each) for each in declared]
    api.lists[CONFIG_MAPS] = [at(901, held, "new")]
    api.secrets["hidden"] = secret("new", 902)
    api.version = "903"
    await observer.read()
    api.lists[PREFIXES] = [
        at(500, resource("a", 7, secretRef="hidden")),
        at(501, declared[1]),
        at(502, resource("back")),
    ]
    api.lists[CONFIG_MAPS] = [at(503, held, "old")]
    api.secrets["hidden"] = secret("old", 504)
    for body in api.lists[PREFIXES][:2]:
        cluster.see_resource(body)
    assert cluster.resources["u-a"].generation == 1, "it looks like an old reading"
    api.version = "505" if restored else "903"
    await observer.sweep()
    await observer.read_texts()
    expected = "old" if restored else "new"
    assert (bench.payload(TEXTS), bench.payload(HIDDEN)) == (expected, expected)
    assert ("u-back" in cluster.resources) is restored
    assert cluster.resources["u-a"].generation == (7 if restored else 1)
    await observer.sweep()
    assert cluster.latest("ml") == (502 if restored else 900)
