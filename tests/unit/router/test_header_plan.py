"""Which names Envoy resolves alone, and which pods answer for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.wire import RouteEndpoint, RoutePrefix
from promptprefix_router.choosing.chooser import Outcome
from promptprefix_router.control.routes import Routes
from promptprefix_router.envoy.header_plan import HeaderPlan, plan_headers

from .samples import DIGEST, endpoint, prefix, routes


def pods(plan: HeaderPlan, table: Routes, name: str) -> list[list[str]] | None:
    """Return the hosts that answer for ``name``, best first; none if Envoy doesn't resolve it."""
    for route in plan.routes:
        if route.name == name:
            return [
                [e.host for e in table.endpoints if group in plan.groups_of(e)]
                for group in route.groups
            ]
    return None


def test_warm_pods_come_first_then_those_that_serve_the_model() -> None:
    table = routes(
        endpoint(1, warm=(DIGEST,)),
        endpoint(2),
        endpoint(3, models=("other",), warm=(DIGEST,)),
        prefixes=(prefix(id="v"),),
    )
    plan = plan_headers(table)
    assert pods(plan, table, "p") == [["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]]
    assert [(r.id, r.outcome) for r in plan.routes] == [("v", Outcome.WARM)]


def test_equal_sets_are_one_group() -> None:
    names = ("a", "b", "c")
    table = routes(
        endpoint(1, warm=("x", "y")),
        endpoint(2, warm=("x", "y")),
        endpoint(3),
        prefixes=tuple(
            prefix(name, token_digests=(digest,)) for name, digest in zip(names, "xyz", strict=True)
        ),
    )
    plan = plan_headers(table)
    a, b, c = plan.routes
    assert a.groups == b.groups
    assert c.groups == a.groups[1:]
    assert len(plan.groups_of(table.endpoints[0])) == 2


def test_a_set_that_is_all_of_the_model_is_named_once() -> None:
    table = routes(endpoint(1, warm=(DIGEST,)), prefixes=(prefix(),))
    assert pods(plan_headers(table), table, "p") == [["10.0.0.1"]]


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        (endpoint(1, warm=(DIGEST,)), Outcome.WARM),
        (endpoint(1, warm=(DIGEST,), ready=False), Outcome.COLD),
        (endpoint(1), Outcome.COLD),
    ],
)
def test_the_outcome_is_what_ready_pods_hold(pod: RouteEndpoint, outcome: Outcome) -> None:
    plan = plan_headers(routes(pod, prefixes=(prefix(),)))
    assert [route.outcome for route in plan.routes] == [outcome]


def test_readiness_changes_no_group() -> None:
    """Envoy knows it from the endpoint: groups, and so routes, needn't change."""
    groups = [
        plan_headers(routes(endpoint(1, ready=ready, warm=(DIGEST,)), prefixes=(prefix(),)))
        .routes[0]
        .groups
        for ready in (True, False)
    ]
    assert groups[0] == groups[1]


def test_a_name_counts_for_its_newest_version_and_finds_all() -> None:
    table = routes(
        endpoint(1, warm=("old",)),
        endpoint(2, warm=("new",)),
        endpoint(3, models=("m", "else"), warm=("other-model",)),
        prefixes=(
            prefix(id="2", token_digests=("new",)),
            prefix(id="1", token_digests=("old",)),
            prefix(id="0", token_digests=("other-model",), model="else"),
        ),
    )
    plan = plan_headers(table)
    assert pods(plan, table, "p") == [
        ["10.0.0.1", "10.0.0.2"],
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
    ]
    assert [route.id for route in plan.routes] == ["2"]


@pytest.mark.parametrize(
    "left_out",
    [
        (prefix(salt="s"),),
        (prefix(), prefix(salt="s")),
        (prefix(owner="team"),),
        (prefix("Upper"),),
        (prefix("with space"),),
        (prefix("a\r\nx: y"),),
        (prefix("é"),),
        (prefix(""),),
        (prefix("x" * 254),),
    ],
)
def test_what_envoy_does_not_resolve(left_out: tuple[RoutePrefix, ...]) -> None:
    assert plan_headers(routes(endpoint(1), prefixes=left_out)).routes == ()


def test_without_a_pod_of_its_model_a_name_has_no_group() -> None:
    (route,) = plan_headers(routes(endpoint(1, models=("x",)), prefixes=(prefix(),))).routes
    assert route.groups == ()


def test_a_new_pod_at_an_old_address_has_no_group() -> None:
    plan = plan_headers(routes(endpoint(1, warm=(DIGEST,)), prefixes=(prefix(),)))
    (successor,) = routes(endpoint(1, models=("m", "lora"))).endpoints
    assert plan.groups_of(successor) == ()


def test_the_most_shared_sets_are_kept() -> None:
    """Names with a set of their own are left to the picker first."""
    table = routes(
        *(endpoint(n, warm=("shared", f"own-{n}")) for n in range(1, 5)),
        endpoint(9),
        prefixes=(
            *(prefix(f"own-{n}", token_digests=(f"own-{n}",)) for n in range(1, 5)),
            *(prefix(f"shared-{n}", token_digests=("shared",)) for n in range(2)),
        ),
    )
    names = [route.name for route in plan_headers(table, max_groups=3).routes]
    assert names == ["own-1", "shared-0", "shared-1"]
    assert len(plan_headers(table, max_groups=6).routes) == 6


def test_names_that_nobody_can_answer() -> None:
    table = routes(endpoint(1), prefixes=(prefix(),))
    plan = plan_headers(table)
    assert plan.unserved(table.endpoints) == frozenset()
    assert plan.unserved(routes(endpoint(1, ready=False)).endpoints) == {"p"}
    assert plan.unserved(routes(endpoint(2)).endpoints) == {"p"}


digests = st.sampled_from("abcd")
pool = st.lists(
    st.builds(
        lambda last, models, warm, ready: endpoint(
            last, models=tuple(models), warm=tuple(warm), ready=ready
        ),
        st.integers(1, 9),
        st.sets(st.sampled_from(["m", "n"])),
        st.sets(digests),
        st.booleans(),
    ),
    max_size=9,
    unique_by=lambda each: each.address,
)
declared = st.lists(
    st.builds(
        lambda name, digest, model: prefix(name, token_digests=(digest,), model=model),
        st.sampled_from("stuvw"),
        digests,
        st.sampled_from(["m", "n"]),
    ),
    max_size=9,
    unique_by=lambda each: each.name,
)


@given(pool, declared, st.integers(0, 8))
def test_a_name_reaches_exactly_the_right_pods(
    endpoints: list[RouteEndpoint], prefixes: list[RoutePrefix], max_groups: int
) -> None:
    table = routes(*endpoints, prefixes=tuple(prefixes))
    plan = plan_headers(table, max_groups)
    assert len({group for route in plan.routes for group in route.groups}) <= max_groups
    for each in prefixes:
        found = pods(plan, table, each.name)
        if found is None:
            continue
        serving = [e.host for e in table.endpoints if each.model in e.models]
        warm = [
            e.host
            for e in table.endpoints
            if each.model in e.models and e.warm.intersection(each.token_digests)
        ]
        best = [warm, serving] if warm != serving else [serving]
        assert found == [hosts for hosts in best if hosts]


@given(pool, declared)
def test_the_order_of_a_table_changes_nothing(
    endpoints: list[RouteEndpoint], prefixes: list[RoutePrefix]
) -> None:
    plans = [
        plan_headers(routes(*endpoints[::step], prefixes=tuple(prefixes[::step])))
        for step in (1, -1)
    ]
    assert plans[0] == plans[1]
