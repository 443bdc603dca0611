"""Versions of declared texts: edits, returns, restarts and what is remembered."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from promptprefix.fleet import DEFAULT_RETENTION, Prefix
from promptprefix.history import QUIET
from promptprefix.payload import Payload
from promptprefix.versions import MATCH_LAG, version_statuses
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.salts import Salts
from promptprefix_operator.sources import Source, SourceKind, text_in
from tests.unit.operator.declared import Linter, edit, later, read, resource, texts

TEXTS = Source(SourceKind.CONFIG_MAP, "ml", "texts")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(lambda: None)


@pytest.fixture
def declarations() -> Declarations:
    return Declarations(Linter(), Salts())


def texts_of(prefix: Prefix) -> list[str]:
    """Return the content digests of the versions of a prefix, newest first."""
    versions = (prefix.version, *prefix.earlier)
    return [version.content_digest for version in versions if version is not None]


def digest(text: str) -> str:
    return Payload(systemInstructions=text).digest


def test_versions_are_remembered_newest_first_and_forgotten_at_their_time(
    declarations: Declarations, cluster: Cluster
) -> None:
    for index, text in enumerate(["one", "two", "three"]):
        prefix = read(declarations, cluster, edit(text, index + 1))
    assert texts_of(prefix) == [digest("three"), digest("two"), digest("one")]
    assert prefix.version is not None
    assert prefix.version.estimated_tokens > 0
    [two, one] = prefix.earlier
    assert one.superseded is not None
    assert two.since is not None
    assert one.superseded > two.since, "an edit waits a while"
    much_later = later() + DEFAULT_RETENTION.idle
    declarations.prune(cluster.resources, {one.id}, much_later)
    [prefix] = declarations.prefixes(cluster, much_later)
    assert prefix.earlier == (one,)
    assert declarations.payload(digest("one")) == Payload(systemInstructions="one")
    assert declarations.payload(digest("two")) is None
    cluster.see_resource(edit("one", 9))
    [again] = declarations.prefixes(cluster, much_later)
    assert texts_of(again) == [digest("one"), digest("three")], "a return waits for nothing"


def test_where_pods_may_yet_report_only_the_oldest_versions_are_forgotten(
    declarations: Declarations, cluster: Cluster
) -> None:
    read(declarations, cluster, edit("one", 1))
    read(declarations, cluster, edit("two", 2))
    now = later()
    for at, awaited, found in (
        (now + DEFAULT_RETENTION.idle, {"ml"}, 1),
        (now + DEFAULT_RETENTION.idle, {"other"}, 0),
    ):
        declarations.prune(cluster.resources, (), at, awaited)
        [prefix] = declarations.prefixes(cluster, at)
        assert len(prefix.earlier) == found
    read(declarations, cluster, edit("three", 3))
    declarations.prune(cluster.resources, (), later() + DEFAULT_RETENTION.max_age, {"ml"})
    assert declarations.prefixes(cluster, later())[0].earlier == ()


def test_a_burst_of_edits_is_one_version(declarations: Declarations, cluster: Cluster) -> None:
    first, start = read(declarations, cluster, edit("text 0", 1)), later()
    for index in range(1, 6):
        cluster.see_resource(edit(f"text {index}", index + 1))
        now = start + timedelta(seconds=index)
        [prefix] = declarations.prefixes(cluster, now)
        assert texts_of(prefix) == [digest("text 0")]
        assert prefix.generation == first.generation, "no text is told to be warm for another one"
    assert declarations.wake_at == now + QUIET
    [prefix] = declarations.prefixes(cluster, now + QUIET)
    assert texts_of(prefix) == [digest("text 5"), digest("text 0")]
    assert declarations.wake_at is None
    assert declarations.payload(digest("text 3")) is None


def test_the_generation_is_told_once_its_text_is_in_force(
    declarations: Declarations, cluster: Cluster
) -> None:
    read(declarations, cluster, edit("one", 1))
    body = resource({"inline": {"systemInstructions": "two"}}, 2, replicas=3)
    body["metadata"]["generation"] = 4
    cluster.see_resource(body)
    now = later()
    [waiting] = declarations.prefixes(cluster, now)
    [settled] = declarations.prefixes(cluster, now + QUIET)
    assert (waiting.generation, settled.generation) == (3, 4)
    assert waiting.spec is not None
    assert waiting.spec.replicas == 3, "the rest of the spec does not wait"
    body = resource({"inline": {"toolDefinitions": "[{]"}}, 3)
    body["metadata"]["generation"] = 5
    cluster.see_resource(body)
    [broken] = declarations.prefixes(cluster, now + QUIET)
    assert (broken.generation, broken.version) == (5, None)


def test_what_did_not_change_is_the_same_object(
    declarations: Declarations, cluster: Cluster
) -> None:
    cluster.see_resource(resource({"configMapRef": {"name": "texts"}}))
    for text in ("one", "one", "two"):
        cluster.see_text(TEXTS, text_in(TEXTS, texts(text)))
        declarations.prefixes(cluster, later())
        [before] = declarations.prefixes(cluster, later())
        [after] = declarations.prefixes(cluster, later())
        declarations.prune(cluster.resources, (), later())
        assert declarations.prefixes(cluster, later())[0] is before is after
    cluster.see_resource(resource({"configMapRef": {"name": "texts"}}, 2, suspend=True))
    assert declarations.prefixes(cluster, later())[0] is not before


def test_matches_reach_the_versions_and_change_the_prefix_only_then(cluster: Cluster) -> None:
    latest: dict[str, datetime] = {}
    declarations = Declarations(Linter(), Salts(), matched=lambda uid, now: latest)
    read(declarations, cluster, edit("one", 1))
    prefix = read(declarations, cluster, edit("two", 2))
    [one] = prefix.earlier
    latest[one.id] = at = later()
    [matched] = declarations.prefixes(cluster, later())
    assert [each.last_matched for each in matched.earlier] == [at]
    assert declarations.prefixes(cluster, later())[0] is matched


def written(prefix: Prefix, active: str = "True") -> dict[str, Any]:
    """Return a status that lists the versions of ``prefix``."""
    versions = version_statuses(prefix, {each.id: 1 for each in prefix.earlier}, {}, later())
    condition = {
        "type": "Active",
        "status": active,
        "reason": "Held" if active == "True" else "Idle",
        "message": "",
        "lastTransitionTime": "2026-11-29T00:00:00Z",
    }
    return {
        "versions": [each.model_dump(mode="json") for each in versions],
        "conditions": [condition],
    }


def test_a_restart_in_the_middle_of_an_edit_forgets_no_version(
    declarations: Declarations, cluster: Cluster
) -> None:
    read(declarations, cluster, edit("one", 1))
    before = read(declarations, cluster, edit("two", 2))
    anew, seen = Declarations(Linter(), Salts()), Cluster(lambda: None)
    seen.see_resource(edit("three", 3) | {"status": written(before)})
    now = later()
    [prefix] = anew.prefixes(seen, now)
    assert texts_of(prefix) == [digest("three"), digest("two"), digest("one")]
    assert [each.readable for each in prefix.earlier] == [False, False]
    two, one = prefix.earlier
    assert (two.id, two.since, two.superseded) == (before.version and before.version.id, ANY, now)
    assert one == replace(before.earlier[0], readable=False, estimated_tokens=0)
    assert anew.payload(digest("two")) is None
    seen.see_resource(edit("two", 4))
    [back] = anew.prefixes(seen, later())
    assert texts_of(back) == [digest("two"), digest("three"), digest("one")]
    assert back.version is not None
    assert back.version.readable
    assert anew.payload(digest("two")) is not None


def test_texts_of_another_model_are_not_taken_for_ours_after_a_restart(
    declarations: Declarations, cluster: Cluster
) -> None:
    before = read(declarations, cluster, edit("one", 1))
    anew, seen = Declarations(Linter(), Salts()), Cluster(lambda: None)
    seen.see_resource(resource(version=2, model="n") | {"status": written(before)})
    [prefix] = anew.prefixes(seen, later())
    [lost] = prefix.earlier
    assert before.version is not None
    assert (lost.id, lost.model, lost.readable) == (before.version.id, "", False)


@pytest.mark.parametrize(("active", "lag"), [("True", MATCH_LAG), ("False", timedelta(0))])
def test_after_a_restart_a_match_may_be_later_than_it_was_written(
    declarations: Declarations, cluster: Cluster, active: str, lag: timedelta
) -> None:
    prefix = read(declarations, cluster, edit("one", 1))
    assert prefix.version is not None
    at = later()
    matched = replace(prefix, version=replace(prefix.version, last_matched=at))
    anew, seen = Declarations(Linter(), Salts()), Cluster(lambda: None)
    seen.see_resource(edit("one", 1) | {"status": written(matched, active)})
    [found] = anew.prefixes(seen, at + timedelta(hours=1))
    assert found.version is not None
    assert (found.version.last_matched, found.version.used) == (at, at + lag)
