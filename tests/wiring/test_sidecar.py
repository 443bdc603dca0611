"""The whole sidecar against a fake engine and a fake operator: real parts between them."""

from __future__ import annotations

import json
from pathlib import Path

from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, Phase
from promptprefix_sidecar.snapshot import PluginStatus

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .sidecar_harness import OTHER, TEXT, running, until


async def test_a_prefix_is_pinned_in_one_request(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
    assert state.pinned is Pinning.HARD
    assert 0 < state.tokens == state.resident_tokens == state.pinned_tokens
    assert state.tokens % BLOCK_SIZE == 0
    assert state.message == state.reason == ""
    prefills = [body for body in engine.sent("/v1/completions") if len(body["prompt"]) > 1]
    assert [len(body["prompt"]) for body in prefills] == [state.tokens + 1]
    engine_state = control.states[-1].engine
    assert engine_state.capabilities == (HARD_PINS,)
    assert (engine_state.address, engine_state.port) == ("10.0.0.7", 8000)
    assert engine_state.epoch == "epoch-1"


async def test_the_pin_survives_traffic_and_goes_with_the_placement(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
        for number in range(20):
            engine.prefill([1000 + number] * BLOCK_SIZE * 10)
        prompt = engine.tokenize(TEXT.system)
        assert engine.prefill([ord("<"), *prompt]) > 0.8 * state.tokens
        await control.want([])
        await control.gone(placement.id)
    assert not engine.pins()


async def test_tools_reach_the_engine_as_declared(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    tools = (
        '[{"type":"function","function":{"name":"f","parameters":'
        '{"z":1.0,"a":1e22,"m":-0.0,"b":1e-7,"n":9007199254740993,"ü":"\\ud83d\\ude42"}}}]'
    )
    payload = Payload(toolDefinitions=tools, chatTemplateOptions='{"b":1.0,"a":false}')
    placement = control.placement("tools", payload)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        await control.state(placement.id)
    bodies = engine.sent("/tokenize")
    assert all(len(body["messages"]) == 1 for body in bodies)
    assert {json.dumps(body["tools"]) for body in bodies} == {json.dumps(json.loads(tools))}
    options = {json.dumps(body["chat_template_kwargs"]) for body in bodies}
    assert options == {'{"b": 1.0, "a": false}'}


async def test_an_engine_restart_warms_everything_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await until(sidecar, lambda _: sidecar.gate.why_closed() == "")
        engine.up = False
        await until(sidecar, lambda s: not s.engine.healthy)
        assert sidecar.gate.why_closed() == "the engine is not healthy"
        engine.restart()
        engine.gate.clear()
        engine.up = True
        await until(sidecar, lambda s: s.engine.healthy)
        assert sidecar.gate.why_closed() != ""
        assert all(r.phase is not Phase.WARM for r in sidecar.board.snapshot.records.values())
        engine.gate.set()
        await until(
            sidecar, lambda s: s.epoch == "epoch-2" and s.records[placement.id].phase is Phase.WARM
        )
        await until(sidecar, lambda _: sidecar.gate.why_closed() == "")
        assert engine.pins() == {sidecar.board.snapshot.records[placement.id].pin_id}
        assert b"engine_restarts_total 1.0" in sidecar.metrics.page()


async def test_a_new_version_is_warm_before_the_old_one_goes(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    old = control.placement("triage", TEXT)
    new = control.placement("triage", OTHER)
    await control.want([old])
    async with running(engine, control, tmp_path):
        await control.state(old.id)
        await control.want([new, old])
        await control.state(new.id)
        assert len(engine.pins()) == 2
        await control.want([new])
        await control.gone(old.id)
    assert {pin.partition("/")[2][:8] for pin in engine.pins()} == {OTHER.digest[:8]}


async def test_changed_tokens_are_pinned_before_the_old_ones_are_released(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, digest_check_interval_s=0.02) as sidecar:
        before = await control.state(placement.id)
        (old_pin,) = engine.pins()
        engine.template = "Today is Tuesday. <{system}|{tools}|U:{user}>A:"
        await until(
            sidecar,
            lambda s: (
                s.records[placement.id].phase is Phase.WARM
                and s.records[placement.id].pin_id != old_pin
                and len(engine.pins()) == 1
            ),
        )
        await control.state(placement.id, where=lambda s: s.token_digest != before.token_digest)
    releases = [(release.id, release.reason) for release in engine.table.releases]
    assert releases == [(old_pin, "Unpinned")]


async def test_a_new_sidecar_adopts_the_pins_it_finds(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    stale = control.placement("stale", OTHER)
    await control.want([placement, stale])
    async with running(engine, control, tmp_path):
        await control.state(placement.id)
        await control.state(stale.id)
    computed = engine.queries - engine.hits
    await control.want([placement])
    control.states.clear()
    async with running(engine, control, tmp_path) as sidecar:
        state = await control.state(placement.id)
        await until(sidecar, lambda _: len(engine.pins()) == 1)
    assert state.pinned is Pinning.HARD
    assert not any(release.id.startswith("triage") for release in engine.table.releases)
    short_requests = len(engine.commands())
    assert engine.queries - engine.hits - computed < short_requests + BLOCK_SIZE


async def test_a_warm_up_stops_when_it_is_no_longer_wanted(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.plugin.status is PluginStatus.WORKING and s.desired_known)
        await control.want([placement])
        engine.gate.clear()
        await until(sidecar, lambda _: "pin" in engine.commands())
        await control.want([])
        await until(sidecar, lambda s: not s.records[placement.id].wanted)
        engine.gate.set()
        await control.gone(placement.id)
    assert not engine.pins()


async def test_a_touch_that_waits_its_turn_holds_up_no_command(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    hard = control.placement("hard", TEXT)
    soft = control.placement("soft", OTHER, pinning=Pinning.SOFT)
    await control.want([hard, soft])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        await control.state(hard.id)
        await control.state(soft.id)
        engine.queue.clear()
        touched = engine.commands().count("warm")
        await until(sidecar, lambda _: engine.commands().count("warm") > touched)
        commands = len(engine.commands())
        await until(sidecar, lambda _: len(engine.commands()) > commands + 2)
        engine.queue.set()


async def test_a_user_turn_that_merges_into_the_head_is_found_at_a_blocks_end(
    control: FakeControl, tmp_path: Path
) -> None:
    """The template ends in a colon exactly at a block's end, and ":(" is one token."""
    engine = FakeEngine(template="<{system}:{user}>", merges=frozenset({":("}))
    text = "y" * (3 * BLOCK_SIZE - 2)
    placement = control.placement("triage", Payload(systemInstructions=text))
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
    assert state.tokens == 2 * BLOCK_SIZE
