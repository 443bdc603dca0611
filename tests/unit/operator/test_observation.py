"""Reading of the cluster: the start, ConfigMaps on demand, and the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.observation import Observer

PREFIXES = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"
PODS = "/api/v1/namespaces/ml/pods"
CONFIG_MAPS = "/api/v1/namespaces/ml/configmaps"


def resource(name: str, config_map: str = "") -> dict[str, Any]:
    inline = {"inline": {"systemInstructions": "x"}}
    return {
        "metadata": {"uid": f"u-{name}", "namespace": "ml", "name": name, "generation": 1},
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"configMapRef": {"name": config_map}} if config_map else inline,
        },
    }


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"uid": f"u-{name}", "namespace": "ml", "name": name}, **fields}


class Api:
    """Collections by path."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {PREFIXES: [], PODS: [], CONFIG_MAPS: []}
        self.errors: list[ApiError] = []
        self.asked: list[str] = []

    async def list_all(self, path: str) -> list[dict[str, Any]]:
        if self.errors:
            raise self.errors.pop(0)
        return list(self.lists[path])

    async def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        assert path == CONFIG_MAPS
        self.asked.append(query["fieldSelector"])
        return {"items": self.lists[CONFIG_MAPS]}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(lambda: None)


@pytest.fixture
def observer(api: Api, cluster: Cluster) -> Observer:
    return Observer(api, cluster, ["ml"])  # type: ignore[arg-type]


async def test_the_start_reads_resources_pods_and_the_config_maps_they_name(
    api: Api, cluster: Cluster, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next", lambda _: 0.0)
    api.lists[PREFIXES] = [resource("a", "texts"), resource("b", "none"), resource("c")]
    api.lists[PODS] = [named("p", status={"podIP": "10.0.0.1"})]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"}), named("other")]
    api.errors = [ApiError(404, "no CRD yet"), ApiError(403, "no rights yet")]
    await observer.start()
    assert set(cluster.resources) == {"u-a", "u-b", "u-c"}
    assert [each.address for each in cluster.pods.values()] == ["10.0.0.1"]
    texts = cluster.config_map(("ml", "texts"))
    assert texts is not None
    assert texts.payload is not None
    assert cluster.config_map(("ml", "none")) is None
    assert cluster.missing == frozenset()
    assert api.asked == ["metadata.name=none", "metadata.name=texts"]


async def test_the_sweep_drops_what_is_gone_and_keeps_what_came_meanwhile(
    api: Api, cluster: Cluster, observer: Observer
) -> None:
    api.lists[PREFIXES] = [resource("a", "texts"), resource("b")]
    api.lists[PODS] = [named("p"), named("q")]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"})]
    await observer.start()
    api.lists[PREFIXES].pop()
    api.lists[PODS].pop()
    api.lists[CONFIG_MAPS].clear()
    listing = api.list_all

    async def list_all(path: str) -> list[dict[str, Any]]:
        found = await listing(path)
        cluster.see_pod(named("new"))
        return found

    api.list_all = list_all  # type: ignore[method-assign]
    await observer.sweep()
    assert set(cluster.resources) == {"u-a"}
    assert set(cluster.pods) == {"u-p", "u-new"}
    assert cluster.config_map(("ml", "texts")) is None


async def test_an_old_absence_does_not_hide_a_config_map_that_came_meanwhile(
    api: Api, cluster: Cluster, observer: Observer
) -> None:
    cluster.see_resource(resource("a", "texts"))
    getting = api.get

    async def get(path: str, query: Mapping[str, str]) -> dict[str, Any]:
        found = await getting(path, query)
        cluster.see_config_map(("ml", "texts"), named("texts", data={"systemInstructions": "x"}))
        return found

    api.get = get  # type: ignore[method-assign]
    await observer.read_config_maps()
    assert cluster.config_map(("ml", "texts")) is not None


async def test_an_old_sight_does_not_bring_back_a_config_map_that_went_meanwhile(
    api: Api, cluster: Cluster, observer: Observer
) -> None:
    api.lists[PREFIXES] = [resource("a", "texts")]
    api.lists[CONFIG_MAPS] = [named("texts", data={"systemInstructions": "x"})]
    await observer.start()
    getting = api.get

    async def get(path: str, query: Mapping[str, str]) -> dict[str, Any]:
        found = await getting(path, query)
        cluster.see_config_map(("ml", "texts"), None)
        return found

    api.get = get  # type: ignore[method-assign]
    await observer.sweep()
    assert cluster.config_map(("ml", "texts")) is None
