"""The whole sidecar against a fake engine and a fake operator: real parts between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pydantic import HttpUrl

from promptprefix.payload import Payload
from promptprefix.resource import Pinning
from promptprefix.wire import HARD_PINS, Phase
from promptprefix_sidecar.clock import Clock
from promptprefix_sidecar.control_client import ControlError, ControlStatusError
from promptprefix_sidecar.settings import Settings
from promptprefix_sidecar.sidecar import Sidecar, build_sidecar
from promptprefix_sidecar.snapshot import NEVER, PluginStatus, Snapshot

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine

TEXT = Payload(systemInstructions="You sort support requests. " * 6)
OTHER = Payload(systemInstructions="You translate legal texts. " * 6)
LONG = Payload(systemInstructions="x" * BLOCK_SIZE * 40)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@contextlib.asynccontextmanager
async def running(
    engine: FakeEngine, control: FakeControl, folder: Path, **changes: object
) -> AsyncIterator[Sidecar]:
    key_file = folder / "key"
    key_file.write_bytes(engine.key)
    values: dict[str, object] = {
        "control_url": HttpUrl("https://operator"),
        "pod_ip": "10.0.0.7",
        "key_file": key_file,
        "probe_interval_s": 0.01,
        "report_interval_s": 0.02,
        "ready_settle_s": 0.0,
        **changes,
    }
    async with engine.client() as client:
        sidecar = build_sidecar(Settings.model_validate(values), client, control, Clock())
        work = asyncio.create_task(sidecar.run())
        try:
            yield sidecar
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def until(sidecar: Sidecar, condition: Callable[[Snapshot], object]) -> None:
    """Wait until the board satisfies a condition."""
    changed = sidecar.board.subscribe()
    async with asyncio.timeout(10):
        while not condition(sidecar.board.snapshot):
            await changed.wait()


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


async def test_without_the_plugin_the_pin_is_soft_and_says_why(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        state = await control.state(placement.id)
        assert state.pinned is Pinning.SOFT
        assert state.reason == "SoftPinned"
        assert "--scheduler-cls" in state.message
        assert state.pinned_tokens == 0
        assert state.resident_tokens == state.tokens
        touches = len(engine.sent("/v1/completions"))
        await until(sidecar, lambda _: len(engine.sent("/v1/completions")) > touches + 3)
        assert control.states[-1].engine.capabilities == ()
        assert control.states[-1].engine.epoch == "1001"


async def test_an_aborted_command_does_not_mean_that_the_plugin_is_missing(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.paused = True
        await until(sidecar, lambda s: s.plugin.ask_at != NEVER or s.plugin.report is None)
        engine.paused = False
        assert sidecar.board.snapshot.plugin.status is PluginStatus.WORKING
        assert sidecar.board.snapshot.records[placement.id].pinned is Pinning.HARD


async def test_a_refusal_in_unknown_words_is_not_asked_for_again_at_once(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    engine.refusal = "Whatever"
    async with running(engine, control, tmp_path) as sidecar:
        await until(sidecar, lambda s: s.plugin.ask_at != NEVER)
        assert engine.commands() == ["report"]
        assert sidecar.board.snapshot.plugin.status is PluginStatus.UNKNOWN


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
        touched = len(engine.sent("/v1/completions")) - len(engine.commands())
        await until(
            sidecar,
            lambda _: len(engine.sent("/v1/completions")) - len(engine.commands()) > touched,
        )
        commands = len(engine.commands())
        await until(sidecar, lambda _: len(engine.commands()) > commands + 2)
        engine.queue.set()


async def test_a_soft_pin_that_was_evicted_is_warmed_again(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False)
    placement = control.placement("triage", TEXT, pinning=Pinning.SOFT)
    await control.want([placement])
    async with running(engine, control, tmp_path, touch_interval_s=0.01) as sidecar:
        await control.state(placement.id)
        engine.pool.cached.clear()
        await until(sidecar, lambda s: s.records[placement.id].soft_evictions == 1)
        await until(sidecar, lambda s: s.records[placement.id].phase is Phase.WARM)
        page = sidecar.metrics.page().decode()
    assert 'premature_evictions_total{name="triage",namespace="ml",pinning="Soft"} 1.0' in page


@pytest.mark.parametrize("details", [True, False])
async def test_an_engine_that_keeps_nothing_is_never_called_warm(
    control: FakeControl, tmp_path: Path, details: bool
) -> None:
    engine = FakeEngine(plugin=False, usage_details=details)
    engine.pool.cached = Forgetful()
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.FAILED)
    assert state.reason == "WarmFailed"
    assert "tokens cached right after computing them" in state.message


class Forgetful(dict[bytes, object]):
    """A cache that keeps nothing."""

    def setdefault(self, key: bytes, default: object = None) -> object:
        return default


async def test_the_engines_counters_prove_residency_where_usage_details_are_off(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(plugin=False, usage_details=False)
    placement = control.placement("triage", TEXT, pinning=Pinning.NONE)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id)
    assert state.pinned is Pinning.NONE
    assert state.resident_tokens == state.tokens


async def test_over_budget_the_pin_is_soft_until_there_is_room(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(budget=16)
    first = control.placement("first", TEXT, priority=1)
    second = control.placement("second", OTHER)
    await control.want([first, second])
    async with running(engine, control, tmp_path) as sidecar:
        assert (await control.state(first.id)).pinned is Pinning.HARD
        state = await control.state(second.id)
        assert state.pinned is Pinning.SOFT
        assert state.reason == "BudgetExceeded"
        assert "the budget is 16" in state.message
        reports = engine.commands().count("report")
        await until(sidecar, lambda _: engine.commands().count("report") > reports + 5)
        assert engine.commands().count("pin") == 2
        assert b'pin_failures_total{reason="BudgetExceeded"} 1.0' in sidecar.metrics.page()


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


async def test_while_the_operator_is_away_pins_are_held_and_restarts_healed(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, lease_s=10) as sidecar:
        await control.state(placement.id)
        await control.fail(ControlError("unreachable", "away"))
        engine.restart()
        await until(
            sidecar,
            lambda s: s.epoch == "epoch-2" and s.records[placement.id].phase is Phase.WARM,
        )
        assert len(engine.pins()) == 1
        assert b'sync_errors_total{kind="unreachable"}' in sidecar.metrics.page()


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


async def test_pins_that_a_reset_took_are_pinned_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.table.release_all(0.0)
        engine.pool.cached.clear()
        await until(sidecar, lambda s: s.records[placement.id].hard_evictions == 1)
        await until(sidecar, lambda s: s.records[placement.id].pinned is Pinning.HARD)
    assert len(engine.pins()) == 1


async def test_a_pin_given_up_under_pressure_is_not_taken_back_at_once(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        engine.table.release_lowest(0.0)
        state = await control.state(placement.id, where=lambda s: s.pinned is Pinning.SOFT)
        assert sidecar.board.snapshot.records[placement.id].hard_evictions == 1
    assert state.reason == "PressureValve"
    assert engine.commands().count("pin") == 1


async def test_a_key_that_does_not_fit_gives_soft_pins(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    other_key = tmp_path / "other"
    other_key.write_bytes(b"x" * 32)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path, key_file=other_key) as sidecar:
        state = await control.state(placement.id)
        assert sidecar.board.snapshot.plugin.status is PluginStatus.REFUSING
    assert state.pinned is Pinning.SOFT
    assert "BadMac" in state.message


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


@pytest.mark.parametrize(
    ("payload", "template", "reason", "words"),
    [
        (Payload(systemInstructions="Short."), "<{system}U:{user}>", "NoStaticHead", "too short"),
        (TEXT, "<U:{user}|{system}>", "NoStaticHead", "mixes system text or tools into"),
        (Payload(toolDefinitions="{"), "<{system}>", "InvalidTools", "toolDefinitions"),
        (
            Payload(toolDefinitions='[{"type":"function","function":{"name":"f","x":1e999}}]'),
            "<{system}>",
            "InvalidTools",
            "too large",
        ),
        (LONG, "<{system}U:{user}>", "WarmFailed", "KV blocks"),
    ],
)
async def test_what_can_not_work_says_why_and_does_not_hold_the_pod_back(
    control: FakeControl, tmp_path: Path, payload: Payload, template: str, reason: str, words: str
) -> None:
    engine = FakeEngine(template=template, blocks=40)
    placement = control.placement("triage", payload)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        state = await control.state(placement.id, Phase.FAILED)
        await until(sidecar, lambda _: sidecar.gate.why_closed() == "")
    assert state.reason == reason
    assert words in state.message


async def test_an_engine_without_prefix_caching_says_so(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(prefix_caching=False)
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.FAILED)
    assert "--enable-prefix-caching" in state.message


async def test_a_model_that_is_not_served_is_warmed_once_it_is(
    control: FakeControl, tmp_path: Path
) -> None:
    engine = FakeEngine(models=("base",))
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.FAILED)
        assert state.reason == "ModelNotServed"
        engine.models = ("base", "demo")
        await control.state(placement.id)


async def test_missing_content_is_asked_for_again(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    payload = control.payloads.pop(TEXT.digest)
    await control.want([placement])
    async with running(engine, control, tmp_path):
        state = await control.state(placement.id, Phase.FAILED)
        assert state.reason == "ContentNotFound"
        control.payloads[TEXT.digest] = payload
        await control.state(placement.id)


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


async def test_an_old_leaders_answer_leads_to_a_new_connection(
    engine: FakeEngine, control: FakeControl, tmp_path: Path
) -> None:
    placement = control.placement("triage", TEXT)
    await control.want([placement])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.fail(ControlStatusError(409, "/v1/sidecar/sync"))
        await until(sidecar, lambda _: control.reconnects > 0)
        assert placement.id in sidecar.board.snapshot.records


async def test_no_declared_text_reaches_logs_or_metrics(
    engine: FakeEngine, control: FakeControl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = Payload(systemInstructions="Hush-hush formula 4711. " * 8)
    placement = control.placement("triage", secret)
    broken = control.placement("broken", Payload(toolDefinitions='[{"Hush-hush": 4711}]'))
    await control.want([placement, broken])
    async with running(engine, control, tmp_path) as sidecar:
        await control.state(placement.id)
        await control.state(broken.id, Phase.FAILED)
        page = sidecar.metrics.page().decode()
    captured = capsys.readouterr()
    states = "".join(state.model_dump_json() for state in control.states)
    for text in (captured.out, captured.err, page, states):
        assert "ush-hush" not in text
        assert "4711" not in text
