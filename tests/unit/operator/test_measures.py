"""Sizes that pods told of: whose they are, and when they are taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from promptprefix.fleet import Prefix, Version
from promptprefix.wire import EngineState, Phase, PlacementState, SidecarState
from promptprefix_operator.measures import MAX_SIZES, Measures

OLD, NEW = (Version(f"u-{name}", "m", "f", "c") for name in ("old", "new"))
DECLARED = Prefix("u", "ml", "u", 1, None, NEW, earlier=(OLD,))
PODS = dict.fromkeys([*"pqr", *(f"p{index}" for index in range(MAX_SIZES + 2))], "ml")


def report(tokens: int, *, id_: str = "u-new", block_size: int = 16, **state: Any) -> SidecarState:
    engine = EngineState(healthy=True, address="a", port=1, block_size=block_size)
    placement = PlacementState(id=id_, phase=Phase.PENDING, tokens=tokens, **state)
    return SidecarState(engine=engine, placements=(placement,))


def measures(*states: dict[str, SidecarState]) -> Measures:
    made = Measures()
    made.follow([DECLARED])
    for each in states:
        made.read(each, PODS)
    return made


def test_a_size_outlives_the_report() -> None:
    made = measures({"p": report(32, heads=("a", "b"))}, {"p": report(0)}, {})
    assert made.sizes == {"u-new": ((16, 32, ("a", "b")),)}


def test_what_is_not_told_is_not_known() -> None:
    states = [report(0), report(32, block_size=0), report(32, id_="other")]
    made = measures(*({"p": each} for each in states))
    assert (made.sizes, len(made)) == ({}, 0)


def test_pods_that_differ_are_all_believed() -> None:
    states = {"p": report(48), "q": report(32), "r": report(64, block_size=32)}
    assert measures(states).sizes == {"u-new": ((16, 32, ()), (16, 48, ()), (32, 64, ()))}


def test_a_pod_takes_back_what_it_said_before() -> None:
    both = {"p": report(48), "q": report(48)}
    assert measures(both, both | {"q": report(32)}).sizes["u-new"] == ((16, 32, ()),)
    assert measures(both, both | {"p": report(32)}).sizes["u-new"] == ((16, 32, ()), (16, 48, ()))


def test_a_pod_that_is_gone_is_outvoted() -> None:
    gone = {"p": report(48), "q": report(96, block_size=32)}
    assert measures(gone, {"r": report(32)}).sizes["u-new"] == ((16, 32, ()), (32, 96, ()))
    away = measures(gone, {"p": report(0), "r": report(32)})
    assert away.sizes["u-new"] == ((16, 32, ()), (16, 48, ()), (32, 96, ()))


def test_a_pod_that_is_gone_is_outvoted_by_one_that_says_what_it_said_before() -> None:
    both = {"p": report(32), "q": report(48)}
    assert measures(both, {"p": report(32)}).sizes["u-new"] == ((16, 32, ()),)


def test_pods_of_other_namespaces_are_not_believed() -> None:
    made, said = measures(), {"p": report(32), "x": report(4_096)}
    made.read(said, {"p": "ml", "x": "other"})
    assert made.sizes == {"u-new": ((16, 32, ()),)}


def test_a_pod_whose_namespace_is_known_late_is_read_then() -> None:
    made, said = measures(), {"p": report(32)}
    made.read(said, {})
    assert made.sizes == {}
    made.read(said, {"p": "ml"})
    assert set(made.sizes) == {"u-new"}


def test_only_declared_and_kept_versions_are_remembered() -> None:
    made = measures({"p": report(32), "q": report(48, id_="u-old")})
    assert set(made.sizes) == {"u-new", "u-old"}
    made.follow([replace(DECLARED, earlier=())])
    assert set(made.sizes) == {"u-new"}
    made.follow([])
    assert (made.sizes, len(made)) == ({}, 0)


def test_a_version_that_is_known_late_is_read_from_what_was_said_before() -> None:
    made = Measures()
    said = {"p": report(32)}
    made.read(said, PODS)
    made.follow([DECLARED])
    made.read(said, PODS)
    assert set(made.sizes) == {"u-new"}


def test_few_sizes_of_a_version_are_remembered() -> None:
    made = measures({f"p{index}": report(16 * (index + 1)) for index in range(MAX_SIZES + 2)})
    assert len(made) == len(made.sizes["u-new"]) == MAX_SIZES


def test_the_same_is_told_as_the_same_object() -> None:
    made = measures({"p": report(32)})
    before = made.sizes["u-new"]
    made.read({"p": report(32), "q": report(32)}, PODS)
    made.follow([DECLARED])
    assert made.sizes["u-new"] is before
