"""Events: their shape, their names, and that they hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from promptprefix_operator import events as module
from promptprefix_operator.api_server import ApiError, FencedError
from promptprefix_operator.events import (
    FENCED_SECONDS,
    MAX_WAITING,
    Events,
    Notice,
    event_of,
    pod_subject,
    prefix_subject,
)
from promptprefix_operator.metrics import Metrics

NOW = datetime(2026, 11, 29, 12, 0, 7, 9, tzinfo=UTC)
PREFIX = prefix_subject("ml", "triage", "u-1")
WARM = Notice(PREFIX, "Normal", "Warm", "Warm on 2 pods.")


class Api:
    def __init__(self) -> None:
        self.posted: list[tuple[str, Mapping[str, Any]]] = []
        self.errors: list[ApiError] = []

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.errors:
            raise self.errors.pop(0)
        self.posted.append((path, body))
        return body


class Bench:
    def __init__(self) -> None:
        self.api, self.metrics = Api(), Metrics()
        self.pauses: list[float] = []
        self.events = Events(
            self.api,  # type: ignore[arg-type]
            self.metrics,
            lambda: NOW,
            lambda: 0.0,
            "pod-1",
            self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def counted(self, result: str) -> float:
        name = "promptprefix_operator_events_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    async def drain(self) -> None:
        task = asyncio.create_task(self.events.run())
        for _ in range(3 * MAX_WAITING):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_event_says_who_what_and_when() -> None:
    event = event_of(WARM, NOW, "pod-1")
    assert event["involvedObject"] == {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "namespace": "ml",
        "name": "triage",
        "uid": "u-1",
    }
    assert event["metadata"]["namespace"] == "ml"
    assert event["metadata"]["name"].startswith("triage.")
    assert (event["type"], event["reason"], event["message"]) == (
        "Normal",
        "Warm",
        "Warm on 2 pods.",
    )
    assert (event["reportingComponent"], event["reportingInstance"]) == (
        "promptprefix-operator",
        "pod-1",
    )
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-11-29T12:00:07Z"


def test_names_are_new_but_for_what_is_told_once() -> None:
    def name(notice: Notice) -> str:
        return str(event_of(notice, NOW, "")["metadata"]["name"])

    assert name(WARM) != name(WARM)
    pod = pod_subject("ml", "vllm-0", "u-2")
    once = Notice(pod, "Warning", "NotInjected", "m", once="made")
    assert name(once) == name(once)
    assert name(once) != name(Notice(pod, "Warning", "NotInjected", "m", once="other"))
    long = prefix_subject("ml", "x" * 236 + "." + "y" * 16, "u-3")
    made = name(Notice(long, "Normal", "Warm", "m"))
    assert (len(made) <= 253, ".." in made) == (True, False)
    assert len(event_of(Notice(PREFIX, "Normal", "W", "m" * 9_999), NOW, "")["message"]) == 1_024


async def test_events_are_posted_in_their_order() -> None:
    bench = Bench()
    bench.events.post(WARM)
    bench.events.post(Notice(PREFIX, "Warning", "WarmFailed", "m"))
    await bench.drain()
    assert [(path, body["reason"]) for path, body in bench.api.posted] == [
        ("/api/v1/namespaces/ml/events", "Warm"),
        ("/api/v1/namespaces/ml/events", "WarmFailed"),
    ]
    assert bench.counted("posted") == 2


async def test_what_is_refused_is_dropped_and_what_is_there_is_no_failure() -> None:
    bench = Bench()
    bench.api.errors = [ApiError(403, "cannot create resource events"), ApiError(409, "exists")]
    bench.events.post(WARM)
    bench.events.post(Notice(PREFIX, "Warning", "NotInjected", "m", once="made"))
    bench.events.post(WARM)
    await bench.drain()
    assert len(bench.api.posted) == 1
    assert (bench.counted("failed"), bench.counted("posted")) == (1, 1)


async def test_what_a_leader_may_not_write_just_now_is_posted_when_it_goes_on() -> None:
    bench = Bench()
    bench.api.errors = [FencedError("POST", "/events"), FencedError("POST", "/events")]
    bench.events.post(Notice(PREFIX, "Warning", "NotInjected", "m", once="made"))
    bench.events.post(WARM)
    await bench.drain()
    assert [body["reason"] for _, body in bench.api.posted] == ["NotInjected", "Warm"]
    assert bench.pauses == [FENCED_SECONDS] * 2
    assert (bench.counted("failed"), bench.counted("posted")) == (0, 2)


async def test_a_hundred_events_that_fail_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(module, "log", log)
    bench = Bench()
    bench.api.errors = [ApiError(0, "no connection")] * 100
    for _ in range(101):
        bench.events.post(WARM)
    await bench.drain()
    assert (bench.counted("failed"), bench.counted("posted")) == (100, 1)
    assert [call.args for call in log.calls] == [
        ("Events not posted",),
        ("Events are posted again",),
    ]


async def test_what_waits_is_bounded() -> None:
    bench = Bench()
    for _ in range(MAX_WAITING + 3):
        bench.events.post(WARM)
    assert bench.counted("dropped") == 3
    await bench.drain()
    assert len(bench.api.posted) == MAX_WAITING
