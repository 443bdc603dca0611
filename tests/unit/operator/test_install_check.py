"""What `helm test` runs: it must say why an installation does not work, and leave nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from promptprefix_operator.api_server import ApiError
from promptprefix_operator.install_check import (
    POLL_SECONDS,
    CheckSettings,
    InstallCheck,
    InstallError,
)

PATH = "/apis/promptprefix.dev/v1alpha1/namespaces/ml/promptprefixes"
OBJECT = f"{PATH}/promptprefix-install-check"
TIMEOUT = 5.0
MODEL: dict[str, Any] = {"model": "m", "selector": {"matchLabels": {"app": "vllm"}}}

Answer = Mapping[str, Any] | ApiError


def settings(**values: Any) -> CheckSettings:
    return CheckSettings(namespace="ml", timeout_seconds=TIMEOUT, **values)


def condition(status: str, reason: str, message: str = "why", generation: int = 1) -> Answer:
    ready = {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-29T00:00:00Z",
    }
    return {"conditions": [ready]}


class World:
    """An API server that gives one status after another, the last one for ever."""

    def __init__(self, *statuses: Answer, refusal: ApiError | None = None) -> None:
        self.statuses = list(statuses)
        self.refusal = refusal
        self.objects: dict[str, Any] = {}
        self.calls: list[str] = []
        self.told: list[str] = []
        self.now = 100.0

    async def get(self, path: str) -> Mapping[str, Any]:
        self.calls.append(f"get {path}")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(status, ApiError):
            raise status
        return {**self.objects[path], "metadata": {"generation": 1}, "status": status}

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append(f"create {path}")
        if self.refusal is not None:
            raise self.refusal
        self.objects[f"{path}/{body['metadata']['name']}"] = body
        return body

    async def delete(self, path: str) -> None:
        self.calls.append(f"delete {path}")
        if path not in self.objects:
            raise ApiError(404, "not found")
        del self.objects[path]

    async def pause(self, seconds: float) -> None:
        self.now += seconds

    async def check(self, values: CheckSettings) -> None:
        await InstallCheck(self, values, lambda: self.now, self.pause, self.told.append).run()


async def test_without_a_model_it_asks_no_engine() -> None:
    world = World({}, condition("True", "Suspended"))
    await world.check(settings())
    assert world.calls == [
        f"delete {OBJECT}",
        f"create {PATH}",
        f"get {OBJECT}",
        f"get {OBJECT}",
        f"delete {OBJECT}",
    ]
    assert world.told[-1].startswith(f"Ready after {POLL_SECONDS:.1f} s: the operator answers")


async def test_with_a_model_it_says_what_is_warm() -> None:
    ready = condition("True", "Pinned")
    assert not isinstance(ready, ApiError)
    world = World({**ready, "desiredPods": 1, "warmPods": 1, "pinnedPods": 1, "tokens": 640})
    await world.check(settings(**MODEL))
    assert world.told == ["Ready after 0.0 s: 640 tokens warm on 1 of 1 pods, pinned on 1"]


async def test_an_older_leftover_is_replaced() -> None:
    world = World(condition("True", "Suspended"))
    world.objects[OBJECT] = {"spec": "of an earlier run"}
    await world.check(settings())
    assert world.objects == {}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([{}], "has written no status: does it run"),
        ([condition("False", "NoMatchingPods", "No pod has app=vllm.")], "NoMatchingPods: No pod"),
        ([condition("True", "Warm", "old", generation=0)], "not Ready after 5 s"),
        ([ApiError(0, "connection refused")], "connection refused"),
        ([ApiError(503, "overloaded")], "overloaded"),
        ([ApiError(403, "get: 403 forbidden")], "403 forbidden"),
        ([{"conditions": [{"type": "Ready"}]}], "status.conditions.0"),
    ],
)
async def test_a_failure_is_told_and_leaves_nothing(answers: list[Answer], words: str) -> None:
    world = World(*answers)
    with pytest.raises(InstallError, match=words):
        await world.check(settings(**MODEL))
    assert world.objects == {}
    assert world.now <= 100.0 + TIMEOUT + POLL_SECONDS


async def test_a_blip_of_the_api_server_is_waited_out() -> None:
    world = World(ApiError(0, "reset"), condition("True", "Suspended"))
    await world.check(settings())
    assert world.told[0] == "reset"


async def test_one_obstacle_is_told_once() -> None:
    slow = condition("False", "Warming")
    world = World(slow, slow, slow, condition("True", "Warm"))
    await world.check(settings(**MODEL))
    assert len(world.told) == 2


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (ApiError(404, "POST: 404 not found"), "crds.enabled"),
        (ApiError(403, "POST: 403 forbidden"), "403 forbidden$"),
    ],
)
async def test_a_refused_resource_is_explained(refusal: ApiError, words: str) -> None:
    with pytest.raises(InstallError, match=words):
        await World({}, refusal=refusal).check(settings())


def test_the_resource_is_warmed_on_the_given_pods() -> None:
    spec = settings(**MODEL).resource()["spec"]
    assert (spec["model"], spec["suspend"]) == ("m", False)
    assert spec["pods"] == {"selector": {"matchLabels": {"app": "vllm"}}}


def test_a_model_without_pods_is_refused() -> None:
    with pytest.raises(ValueError, match="give the label selector"):
        settings(model="m")


def test_a_selector_that_is_none_is_refused_before_anything_is_applied() -> None:
    with pytest.raises(ValueError, match="matchLabel"):
        settings(model="m", selector={"matchLabel": {"app": "vllm"}}).resource()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTPREFIX_TEST_NAMESPACE", "ml")
    monkeypatch.setenv("PROMPTPREFIX_TEST_MODEL", "m")
    monkeypatch.setenv("PROMPTPREFIX_TEST_SELECTOR", '{"matchLabels": {"app": "vllm"}}')
    read = CheckSettings()
    assert read.selector == MODEL["selector"]
