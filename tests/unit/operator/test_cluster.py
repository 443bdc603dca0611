"""What resources refer to, kept up to date resource by resource."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from promptprefix_operator.cluster import Cluster
from promptprefix_operator.sources import Source, SourceKind, absent

UIDS = ("u-1", "u-2", "u-3")


def resource(uid: str, generation: int, text: str, salt: str = "", **more: Any) -> dict[str, Any]:
    """Return a resource whose text is in the ConfigMap ``text``, or its own if that is empty."""
    content = {"configMapRef": {"name": text}} if text else {"inline": {"systemInstructions": "x"}}
    spec: dict[str, Any] = {
        "model": "m",
        "pods": {"selector": {"matchLabels": {"app": "v"}}},
        "content": content,
    }
    if salt:
        spec["cacheSaltRef"] = {"name": salt}
    metadata = {"uid": uid, "namespace": "ml", "name": uid, "generation": generation}
    return {"metadata": metadata, "spec": spec} | more


def referred(cluster: Cluster) -> dict[str, set[tuple[str, int]]]:
    return {each.name: set(by) for each, by in cluster.referred.items()}


names = st.sampled_from(("", "a", "b"))
changes = st.tuples(st.sampled_from(UIDS), st.integers(1, 3), names, names) | st.sampled_from(UIDS)


@given(st.lists(changes, max_size=12))
def test_the_references_are_those_of_the_resources_that_are_there(
    steps: list[tuple[str, int, str, str] | str],
) -> None:
    cluster = Cluster(lambda: None)
    there: dict[str, tuple[str, int, str, str]] = {}
    for step in steps:
        if isinstance(step, str):
            cluster.forget_resource(step)
            there.pop(step, None)
        else:
            cluster.see_resource(resource(*step))
            there[step[0]] = step
        for source in cluster.missing:
            cluster.see_text(source, absent(source))
        wanted: dict[tuple[SourceKind, str], set[tuple[str, int]]] = {}
        for uid, generation, text, salt in there.values():
            for key in ((SourceKind.CONFIG_MAP, text), (SourceKind.SALT, salt)):
                if key[1]:
                    wanted.setdefault(key, set()).add((uid, generation))
        found = {(each.kind, each.name): set(by) for each, by in cluster.referred.items()}
        assert found == wanted


def test_a_text_is_kept_as_long_as_somebody_refers_to_it() -> None:
    cluster, source = Cluster(lambda: None), Source(SourceKind.CONFIG_MAP, "ml", "a")
    cluster.see_resource(resource("u-1", 1, "a"))
    cluster.see_text(source, found := absent(source))
    cluster.see_resource(resource("u-1", 2, "a"))
    cluster.see_resource(resource("u-2", 1, "a"))
    assert cluster.text(source) is found
    cluster.see_resource(resource("u-1", 3, ""))
    assert cluster.text(source) is found
    cluster.forget_namespace("ml")
    assert (cluster.text(source), referred(cluster)) == (None, {})


def test_a_status_that_was_written_costs_nothing_for_all_other_resources() -> None:
    cluster = Cluster(lambda: None)
    for uid in UIDS:
        cluster.see_resource(resource(uid, 1, f"text-{uid}"))
    before = dict(cluster.referred)
    cluster.see_resource(resource("u-2", 1, "text-u-2", status={"tokens": 1}))
    cluster.see_resource(resource("u-3", 2, "text-u-3"))
    kept = [each.name for each, by in cluster.referred.items() if by is before[each]]
    assert kept == ["text-u-1", "text-u-2"]
