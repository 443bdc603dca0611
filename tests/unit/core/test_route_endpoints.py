"""Which pods are in the router's pool."""

from __future__ import annotations

import pytest

from promptprefix.accounts import Accounts
from promptprefix.eligibility import candidate
from promptprefix.fleet import Pod, Sidecar
from promptprefix.routes import endpoint_of
from promptprefix.wire import EngineState, SidecarState

ENGINE = EngineState(healthy=True, address="9.9.9.9", port=8000, models=("m",))


@pytest.mark.parametrize(
    ("engine", "address", "listed"),
    [
        (ENGINE, "10.0.0.1", True),
        # the router speaks plain HTTP to engines
        (ENGINE.model_copy(update={"tls": True, "port": 8443}), "10.0.0.1", False),
        (ENGINE.model_copy(update={"port": 0}), "10.0.0.1", False),
        (ENGINE.model_copy(update={"port": 70_000}), "10.0.0.1", False),
        (ENGINE, "", False),
        (None, "10.0.0.1", False),
    ],
)
def test_only_engines_that_the_router_can_reach_are_listed(
    engine: EngineState | None, address: str, listed: bool
) -> None:
    pod = Pod("u", "ml", "p", {}, address, True, False)
    sidecar = None if engine is None else Sidecar(SidecarState(engine=engine), frozenset())
    found = endpoint_of(candidate(pod, sidecar, Accounts()), ())
    assert (found and (found.address, found.port)) == (("10.0.0.1", 8000) if listed else None)


@pytest.mark.parametrize(("told", "port"), [(0, 0), (8091, 8091), (70_000, 0)])
def test_a_pod_has_a_feed_of_blocks_where_its_sidecar_says(told: int, port: int) -> None:
    engine = ENGINE.model_copy(update={"blocks_port": told})
    pod = Pod("u", "ml", "p", {}, "10.0.0.1", True, False)
    sidecar = Sidecar(SidecarState(engine=engine), frozenset())
    found = endpoint_of(candidate(pod, sidecar, Accounts()), ())
    assert found is not None
    assert found.blocks_port == port
