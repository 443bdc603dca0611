"""What can't be warmed says why, and nothing tells a declared text."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix.payload import Payload
from promptprefix.wire import Phase

from .fake_control import FakeControl
from .fake_engine import BLOCK_SIZE, FakeEngine
from .sidecar_harness import TEXT, running, until

LONG = Payload(systemInstructions="x" * BLOCK_SIZE * 40)


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
