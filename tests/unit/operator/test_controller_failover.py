"""A new leader that finds the declared text edited since the last one wrote its status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from promptprefix.fleet import DEFAULT_RETENTION
from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, EngineState, Phase, PlacementState, SidecarState
from tests.unit.operator.test_controller_windows import EDGE, Bench, Clock


def report(bench: Bench, *warm: str) -> None:
    engine = EngineState(
        healthy=True,
        address="a",
        port=1,
        models=("m", "n"),
        block_size=16,
        blocks_total=100,
        capabilities=(HARD_PINS,),
    )
    states = tuple(
        PlacementState(
            id=id_,
            phase=Phase.WARM,
            tokens=16,
            pinned=Pinning.HARD,
            pinned_tokens=16,
            token_digest="a" * 64,
        )
        for id_ in warm
    )
    state = SidecarState(engine=engine, placements=states)
    bench.sidecars.report("p", state, bench.publication.set_of("p").revision)


@pytest.mark.parametrize(
    "edit", [{"model": "n"}, {"model": "n", "content": {"inline": {"systemInstructions": "y"}}}]
)
def test_the_text_of_the_model_before_stays_until_the_new_one_is_warm_and_it_was_unused(
    edit: dict[str, Any],
) -> None:
    clock = Clock(EDGE)
    first = Bench(clock)
    first.controller.step()
    [old] = first.set
    report(first, old.id)
    first.controller.step()

    clock.time += timedelta(hours=30)
    bench = Bench(clock)
    bench.declare(first.status, **edit)
    report(bench, old.id)
    bench.controller.step()
    [new, kept] = bench.set
    assert (new.model, new.retained) == ("n", False)
    assert (kept.id, kept.retained, kept.pinning) == (old.id, True, Pinning.HARD)
    assert [each.id for each in bench.publication.routes.prefixes] == [new.id]

    clock.time += DEFAULT_RETENTION.idle
    bench.controller.step()
    assert old.id in {each.id for each in bench.set}, "the new one is not warm"
    report(bench, new.id, old.id)
    bench.controller.step()
    assert [each.id for each in bench.set] == [new.id]
    bench.controller.step()
    assert [each.id for each in bench.status.versions] == [new.id.removeprefix("u-")]
