"""Readings of a namespace: everything, texts that are due, and the sweep."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from promptprefix.reasons import Reason
from promptprefix_operator.api_server import ApiError, Listing
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.observation import SECRET_SECONDS, Observer
from promptprefix_operator.pace import Pace
from promptprefix_operator.sources import Source, SourceKind, absent, text_in

PREFIXES = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"
PODS = "/api/v1/namespaces/ml/pods"
CONFIG_MAPS = "/api/v1/namespaces/ml/configmaps"
SECRETS = "/api/v1/namespaces/ml/secrets/"
TEXTS = Source(SourceKind.CONFIG_MAP, "ml", "texts")
HIDDEN = Source(SourceKind.SECRET, "ml", "hidden")


def resource(name: str, generation: int = 1, **content: str) -> dict[str, Any]:
    inline = {"inline": {"systemInstructions": "x"}}
    references = {key: {"name": value} for key, value in content.items()}
    return {
        "metadata": {
            "uid": f"u-{name}",
            "namespace": "ml",
            "name": name,
            "generation": generation,
        },
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": references or inline,
        },
    }


def named(name: str, namespace: str = "ml", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"uid": f"u-{name}", "namespace": namespace, "name": name}, **fields}


def secret(text: str, version: int) -> dict[str, Any]:
    data = {"systemInstructions": base64.b64encode(text.encode()).decode()}
    return {"metadata": {"name": "hidden", "resourceVersion": str(version)}, "data": data}


class Api:
    """Collections by path, Secrets by name; ``errors`` are raised first."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {PREFIXES: [], PODS: [], CONFIG_MAPS: []}
        self.secrets: dict[str, dict[str, Any] | ApiError] = {}
        self.asked: list[str] = []
        self.version = ""
        self.served = True

    async def list_all(self, path: str) -> Listing:
        return Listing(list(self.lists[path]), self.version)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        if path == "/apis":
            return {"groups": [{"name": "promptprefix.dev"}] if self.served else []}
        if path == "/apis/promptprefix.dev/v1alpha1":
            return {"resources": [{"name": "promptprefixes"}]}
        if path.startswith(SECRETS):
            self.asked.append(path.removeprefix(SECRETS))
            found = self.secrets.get(path.removeprefix(SECRETS), ApiError(404, "no"))
            if isinstance(found, ApiError):
                raise found
            return found
        assert path == CONFIG_MAPS
        assert query is not None
        self.asked.append(query["fieldSelector"])
        return {"items": self.lists[CONFIG_MAPS]}


class OverError(Exception):
    """The time of a test is over."""


class Bench:
    """One namespace. ``now`` is the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.until = 0.0
        self.api = Api()
        self.cluster = Cluster(lambda: None)
        self.observer = Observer(
            api=self.api,  # type: ignore[arg-type]
            cluster=self.cluster,
            namespace="ml",
            slots=asyncio.Semaphore(2),
            pace=Pace(lambda: self.now, SECRET_SECONDS, self._sleep),
            reread_seconds=30,
            clock=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        """Let time pass; the rest of the test is over when it is ``until``."""
        self.now += seconds
        if self.now >= self.until:
            raise OverError

    async def fresh(self, seconds: float) -> None:
        """Read Secrets again for so long."""
        self.until = self.now + seconds
        with pytest.raises(OverError):
            await self.observer.keep_fresh()

    def payload(self, source: Source) -> str:
        text = self.cluster.text(source)
        assert text is not None
        assert text.payload is not None
        return text.payload.systemInstructions

    def reason(self, source: Source) -> Reason | None:
        text = self.cluster.text(source)
        assert text is not None
        return text.reason


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


async def test_a_secret_is_read_again_after_a_while_and_when_a_resource_changes(
    bench: Bench,
) -> None:
    api, observer = bench.api, bench.observer
    bench.cluster.see_resource(resource("a", secretRef="hidden"))
    await observer.read_texts()
    assert bench.reason(HIDDEN) is Reason.CONTENT_NOT_FOUND
    api.secrets["hidden"] = secret("one", 1)
    await observer.read_texts()
    await bench.fresh(29.0)
    assert api.asked == ["hidden"], "not due yet"
    await bench.fresh(2.0)
    assert bench.payload(HIDDEN) == "one"
    api.secrets["hidden"] = secret("two", 2)
    bench.cluster.see_resource(resource("a", generation=2, secretRef="hidden"))
    await observer.read_texts()
    assert bench.payload(HIDDEN) == "two"
    bench.cluster.see_resource(resource("b", secretRef="hidden"))
    await observer.read_texts()
    assert api.asked == ["hidden"] * 4


async def test_a_secret_that_may_not_be_read_is_told_and_healed(bench: Bench) -> None:
    bench.cluster.see_resource(resource("a", secretRef="hidden"))
    bench.api.secrets["hidden"] = ApiError(403, "no")
    await bench.observer.read_texts()
    assert bench.reason(HIDDEN) is Reason.CONTENT_FORBIDDEN
    bench.api.secrets["hidden"] = secret("one", 1)
    await bench.fresh(31.0)
    assert bench.payload(HIDDEN) == "one"


async def test_a_secret_of_many_salts_and_a_text_is_read_once(bench: Bench) -> None:
    salts = {key: f"{key}-a-salt-of-some-length" for key in ("one", "two")}
    body = secret("h", 1)
    body["data"] |= {key: base64.b64encode(each.encode()).decode() for key, each in salts.items()}
    bench.api.secrets["hidden"] = body
    for key in salts:
        salted = resource(key, secretRef="hidden")
        salted["spec"]["cacheSaltRef"] = {"name": "hidden", "key": key}
        bench.cluster.see_resource(salted)
    await bench.observer.read_texts()
    assert bench.api.asked == ["hidden"]
    assert bench.payload(HIDDEN) == "h"
    read = [bench.cluster.text(Source(SourceKind.SALT, "ml", "hidden", key)) for key in salts]
    assert [each.salt for each in read if each is not None] == list(salts.values())
    await bench.fresh(31.0)
    assert bench.api.asked == ["hidden"] * 2


async def test_a_trouble_that_passes_changes_no_text(bench: Bench) -> None:
    bench.cluster.see_resource(resource("a", secretRef="hidden"))
    bench.api.secrets["hidden"] = secret("one", 1)
    await bench.observer.read_texts()
    bench.api.secrets["hidden"] = ApiError(500, "no")
    await bench.fresh(31.0)
    assert bench.payload(HIDDEN) == "one"
    assert bench.api.asked == ["hidden"] * 2
    bench.api.secrets["hidden"] = secret("two", 2)
    await bench.fresh(60.0)
    assert bench.payload(HIDDEN) == "two"


async def test_texts_are_read_at_each_pass_until_that_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next", lambda _: 0.0)
    passes: list[str] = []
    errors = [ApiError(500, "trouble"), ApiError(403, "no rights")]

    async def get(path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        raise errors.pop(0)

    async def passed() -> None:
        passes.append("")
        bench.cluster.see_resource(resource("a", configMapRef="texts"))
        bench.api.get = get  # type: ignore[assignment, method-assign]

    with pytest.raises(ApiError, match="no rights"):
        await bench.observer.keep_texts(passed)
    assert (len(passes), errors) == (1, [])


def many(bench: Bench, count: int) -> list[str]:
    """Declare resources with a Secret each, and return the Secrets' names."""
    names = [f"s{number}" for number in range(count)]
    for name in names:
        bench.cluster.see_resource(resource(name, secretRef=name))
        bench.api.secrets[name] = secret(name, 1)
    return names


async def test_three_hundred_secrets_take_turns(bench: Bench) -> None:
    names = many(bench, 300)
    await bench.observer.read_texts()
    assert sorted(bench.api.asked) == sorted(names), "at once at first"
    times: list[float] = []
    getting = bench.api.get

    async def get(path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        times.append(bench.now)
        return await getting(path, query)

    bench.api.get = get  # type: ignore[method-assign]
    bench.api.asked.clear()
    await bench.fresh(630.0)
    assert len(times) == pytest.approx(600 / SECRET_SECONDS, abs=2)
    gaps = [later - one for one, later in pairwise(times)]
    assert min(gaps) == max(gaps) == SECRET_SECONDS, "two a second, evenly"
    assert {bench.api.asked.count(name) for name in names} == {4}
    bench.api.asked.clear()
    bench.cluster.see_resource(resource("s7", generation=2, secretRef="s7"))
    await bench.observer.read_texts()
    assert bench.api.asked == ["s7"], "a changed resource waits for no turn"


async def test_few_secrets_are_read_again_within_the_resync(bench: Bench) -> None:
    names = many(bench, 40)
    await bench.observer.read_texts()
    bench.api.asked.clear()
    await bench.fresh(300.0)
    assert {bench.api.asked.count(name) for name in names} <= {8, 9, 10}


async def test_a_secret_that_is_awaited_comes_first_and_starves_nobody(bench: Bench) -> None:
    names = many(bench, 300)
    awaited = names[150:300]
    for name in awaited:
        del bench.api.secrets[name]
    await bench.observer.read_texts()
    bench.api.asked.clear()
    await bench.fresh(630.0)
    healthy, waiting = (
        [bench.api.asked.count(name) for name in each] for each in (names[:150], awaited)
    )
    assert min(healthy) >= 3
    bench.api.secrets["s299"] = secret("made", 1)
    for name in awaited[1:-1]:
        bench.api.secrets[name] = secret(name, 1)
    bench.api.asked.clear()
    await bench.fresh(630.0)
    assert bench.payload(Source(SourceKind.SECRET, "ml", "s299")) == "made"
    assert max(waiting) >= min(healthy)
    only = bench.api.asked.count(awaited[0])
    assert only >= 12, "alone it has its turn after each resync"


async def test_one_that_can_not_be_read_holds_up_no_other(bench: Bench) -> None:
    names = many(bench, 3)
    await bench.observer.read_texts()
    bench.api.secrets["s0"] = ApiError(500, "can't be decrypted")
    bench.api.asked.clear()
    await bench.fresh(300.0)
    assert min(bench.api.asked.count(name) for name in names) >= 3


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


async def test_a_secret_that_nobody_can_decrypt_does_not_keep_its_namespace_unknown(
    bench: Bench,
) -> None:
    api = bench.api
    api.lists[PREFIXES] = [resource(name, secretRef=name) for name in ("bad", "worse", "well")]
    api.secrets = {"well": secret("w", 1)}
    for name in ("bad", "worse"):
        api.secrets[name] = ApiError(500, "no matching key")
    for _ in range(2):
        with pytest.raises(ApiError, match="no matching key"):
            await bench.observer.read()
    await bench.observer.read()
    well, bad = (Source(SourceKind.SECRET, "ml", name) for name in ("well", "bad"))
    assert bench.payload(well) == "w"
    assert bench.reason(bad) is Reason.RECONCILING
    assert "no matching key" in getattr(bench.cluster.text(bad), "error", "")
    api.secrets["bad"] = secret("b", 2)
    await bench.fresh(31.0)
    assert bench.payload(bad) == "b"
