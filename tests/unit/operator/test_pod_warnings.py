"""Pods that people must hear of: not injected, or Ready while cold."""

from __future__ import annotations

from typing import Any

import pytest

from promptprefix.fleet import Pod
from promptprefix.wire import EngineState, SidecarState
from promptprefix_operator.events import Notice
from promptprefix_operator.manifests import pod_of
from promptprefix_operator.pod_warnings import notices, uninjected_by_namespace
from promptprefix_operator.standing_warnings import BURST, SECONDS_EACH, StandingWarnings

ASKS = {"promptprefix.dev/inject": "true"}
SIDECAR = {"initContainers": [{"name": "other"}, {"name": "promptprefix-sidecar"}]}


def body(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    metadata = {"uid": "u", "namespace": "ml", "name": "p", "labels": labels or {}}
    return {"metadata": metadata | {"annotations": annotations or {}}, "spec": spec or {}}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (body(ASKS), True),
        (body(ASKS, spec={"initContainers": [{"name": "other"}]}), True),
        (body(), False),
        (body({"promptprefix.dev/inject": "false"}), False),
        (body(ASKS, {"promptprefix.dev/inject": "false"}), False),
        (body(ASKS, spec=SIDECAR), False),
        (body(ASKS, {"promptprefix.dev/injected": "none"}), False),
        ({"metadata": {"uid": "u", "namespace": "ml", "name": "p", "labels": ASKS}}, True),
    ],
)
def test_which_pods_no_webhook_has_looked_at(pod: dict[str, Any], expected: bool) -> None:
    assert pod_of(pod).uninjected is expected


def pod(name: str, *, uninjected: bool = False, leaving: bool = False) -> Pod:
    return Pod(f"u-{name}", "ml", name, {}, "", True, leaving, uninjected)


def state(epoch: str, failed_open: bool = True) -> SidecarState:
    engine = EngineState(healthy=True, address="", port=1, epoch=epoch)
    return SidecarState(engine=engine, failed_open=failed_open)


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.pods: dict[str, Pod] = {}
        self.states: dict[str, SidecarState] = {}
        self.posted: list[Notice] = []
        self.warnings = StandingWarnings(
            found=lambda: notices(self.pods, self.states),
            events=self,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def post(self, notice: Notice) -> None:
        self.posted.append(notice)

    def see(self, *pods: Pod) -> None:
        self.pods = {each.uid: each for each in pods}
        self.warnings.step()

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(each.subject.name, each.reason) for each in self.posted]


def test_a_pod_that_was_not_injected_is_told_once() -> None:
    bench = Bench()
    bench.see(pod("a", uninjected=True), pod("b"), pod("c", uninjected=True, leaving=True))
    bench.see(pod("a", uninjected=True))
    assert bench.told == [("a", "NotInjected")]
    assert bench.posted[0].type == "Warning"
    assert "kubectl rollout restart" in bench.posted[0].message


def test_a_pod_that_is_ready_while_cold_is_told_once_per_epoch() -> None:
    bench = Bench()
    for epoch, failed in (("1", False), ("1", True), ("1", True), ("2", False), ("3", True)):
        bench.states = {"u-a": state(epoch, failed), "unknown": state("1")}
        bench.see(pod("a"))
    assert bench.told == [("a", "ReadyWithoutPrefixes")] * 2
    assert len({each.once for each in bench.posted}) == 2


def test_many_pods_are_told_of_slowly() -> None:
    bench = Bench()
    pods = [pod(f"{index}", uninjected=True) for index in range(BURST + 5)]
    bench.see(*pods)
    bench.see(*pods)
    assert len(bench.posted) == BURST
    bench.now = 5 * SECONDS_EACH
    bench.see(*pods)
    assert len(set(bench.told)) == BURST + 5


def test_uninjected_pods_are_counted_by_namespace() -> None:
    pods = [pod("a", uninjected=True), pod("b"), pod("c", uninjected=True, leaving=True)]
    assert uninjected_by_namespace({each.uid: each for each in pods}) == {"ml": 1}
