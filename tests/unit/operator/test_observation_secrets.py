"""Secrets of a namespace: when each is read again, and what one that can't be read does."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from promptprefix.reasons import Reason
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.observation import SECRET_SECONDS
from promptprefix_operator.sources import Source, SourceKind
from tests.unit.operator.observation_bench import (
    HIDDEN,
    PREFIXES,
    Bench,
    resource,
    secret,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


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
