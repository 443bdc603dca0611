"""Salted prefixes and prefixes of adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.resource import Pinning
from promptprefix.wire import Phase
from promptprefix_sidecar.control_client import ControlError

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until

PROMPT = f'<{TEXT.system}|""|U:'
SALT = "tenant-a's secret"


@pytest.mark.parametrize("pinning", [Pinning.HARD, Pinning.SOFT])
@pytest.mark.parametrize("plugin", [True, False])
async def test_every_request_about_a_salted_prefix_carries_its_salt(
    control: FakeControl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pinning: Pinning,
    plugin: bool,
) -> None:
    engine = FakeEngine(plugin=plugin)
    placement = control.placement("triage", TEXT, salt=SALT, pinning=pinning)
    await control.want([placement])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        state = await control.state(placement.id)
        reads = len(engine.sent("/metrics"))
        await until(sidecar, lambda _: len(engine.sent("/metrics")) > reads + 10)
        page = sidecar.metrics.page().decode()
    about = [b for b in engine.sent("/v1/completions") if len(b["prompt"]) > BLOCK_SIZE]
    assert about
    assert {body.get("cache_salt") for body in about} == {SALT}
    assert engine.ask(PROMPT) == 0
    assert engine.ask(PROMPT, SALT) == state.tokens
    assert SALT not in page + capsys.readouterr().out + repr(sidecar.board.snapshot)
    assert SALT not in control.states[-1].model_dump_json()


async def test_a_salt_that_cant_be_had_is_asked_for_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT, salt=SALT)
    plain = control.placement("plain", OTHER)
    refused = ControlError("unreadable", "a cache salt is empty")
    control.salt_error = refused
    await control.want([placement, plain])
    async with running(engine, control, tmp_path):
        await control.state(plain.id)
        state = await control.state(placement.id, Phase.FAILED)
        assert (state.reason, state.message) == ("WarmFailed", str(refused))
        assert not any("cache_salt" in body for body in engine.sent("/v1/completions"))
        control.salt_error = None
        await control.state(placement.id)


async def test_that_the_control_api_was_away_is_no_failure_of_the_pod(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT, salt=SALT)
    plain = control.placement("plain", OTHER)
    control.salt_error = ControlError("timeout", "the control API did not answer in time")
    await control.want([placement, plain])
    async with running(engine, control, tmp_path):
        await control.state(plain.id)
        await control.state(placement.id, Phase.PENDING)
        control.salt_error = None
        await control.state(placement.id)
    told = [each for state in control.states for each in state.placements]
    assert Phase.FAILED not in {each.phase for each in told}


async def test_a_match_counts_for_the_tenant_whose_salt_it_carries(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    ours = control.placement("ours", TEXT, salt=SALT)
    theirs = control.placement("theirs", TEXT, salt="another")
    await control.want([ours, theirs])
    async with running(engine, control, tmp_path):
        first = await control.state(ours.id)
        second = await control.state(theirs.id)
        assert first.heads == second.heads
        assert len(engine.pins()) == 2
        assert engine.table.blocks_pinned == 2 * first.tokens // BLOCK_SIZE
        engine.ask(PROMPT, SALT)
        await control.state(ours.id, where=lambda s: s.last_hit is not None)
        assert (await control.state(theirs.id)).last_hit is None


@pytest.mark.parametrize("moved", [True, False])
async def test_an_adapter_with_other_weights_is_warmed_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, moved: bool
) -> None:
    engine.adapters["fine"] = ("/adapters/one", 1)
    placement = control.placement("triage", TEXT, model="fine")
    base = control.placement("base", TEXT)
    await control.want([placement, base])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.state(base.id)
        (before,) = (pin for pin in engine.table.pins if pin.adapter is not None)
        engine.adapters["fine"] = ("/adapters/two" if moved else "/adapters/one", 2)
        if not moved:  # only the plugin can tell, at the next request that names the adapter
            engine.desk.see_adapter(engine.adapter_named("fine"))
        await until(
            sidecar,
            lambda _: any(p.adapter and p.adapter.number == 2 for p in engine.table.pins),
        )
        await control.state(placement.id, where=lambda s: s.pinned is Pinning.HARD)
        assert sidecar.board.snapshot.records[placement.id].hard_evictions == 0
        (after,) = (pin for pin in engine.table.pins if pin.adapter is not None)
        assert (before.hashes != after.hashes) is moved
        if moved:
            assert not any(digest in engine.pool.cached for digest in before.hashes)
        assert (await control.state(base.id)).pinned is Pinning.HARD
    assert engine.commands().count("pin") == 3


async def test_an_adapter_that_goes_is_given_up_and_warmed_when_it_comes_back(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    engine.adapters["fine"] = ("/adapters/one", 1)
    placement = control.placement("triage", TEXT, model="fine")
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        del engine.adapters["fine"]
        state = await control.state(placement.id, Phase.FAILED)
        assert state.reason == "ModelNotServed"
        await until(sidecar, lambda _: not engine.pins())
        engine.adapters["fine"] = ("/adapters/one", 2)
        await control.state(placement.id, where=lambda s: s.pinned is Pinning.HARD)
        (pin,) = engine.table.pins
        assert pin.adapter is not None
        assert pin.adapter.number == 2
