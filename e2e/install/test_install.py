"""The story of an installation, step by step; each step goes on from the one before."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from e2e.install import values
from e2e.install.objects import objects
from e2e.install.previous_chart import previous_chart
from e2e.install.programs import ProgramError
from e2e.install.prompts import NAME, Prompts
from e2e.install.readiness import ReadinessHistory
from e2e.install.readings import condition, is_ready
from e2e.install.report import record
from e2e.install.stand import CHARTS, SIDECAR, Stand, wait_until
from e2e.install.values import LABELS, SYSTEM, TEAM
from e2e.install.workloads import (
    ENGINE_KEY,
    PLAIN,
    engine_key,
    idle,
    namespace,
    plain_vllm,
    prompt_prefix,
    text,
)

pytestmark = pytest.mark.timeout(3600)  # the first run builds images, Helm and Kubernetes

RELEASE, ENGINES = "promptprefix", "vllm"
CHART = CHARTS / "promptprefix"
TEAM_PODS = ",".join(f"{name}={value}" for name, value in LABELS.items())
ROUTER = f"http://promptprefix-router.{SYSTEM}.svc"
OPERATOR_PODS = "app.kubernetes.io/name=promptprefix,app.kubernetes.io/component=operator"
KEPT = {
    "customresourcedefinitions.apiextensions.k8s.io /promptprefixes.promptprefix.dev",
    "apiservices.apiregistration.k8s.io /v1alpha1.promptprefix.dev",  # made from the former
}
SECRET = "sensitive"
METRICS = """
import urllib.request as u
print(u.urlopen('http://127.0.0.1:8081/metrics', timeout=10).read().decode())
"""


@pytest.fixture(scope="module")
def before(stand: Stand) -> frozenset[str]:
    """All objects before anything of ours was installed."""
    stand.kubectl.apply(namespace(SYSTEM), namespace(TEAM), *stand.folders.objects())
    claims = "--for=jsonpath={.status.phase}=Bound"
    stand.kubectl("wait", claims, "pvc", "--all", "-n", TEAM, "--timeout=60s")
    return objects(stand.kubectl)


@pytest.fixture(scope="module")
def prompts(stand: Stand) -> Prompts:
    """The team's repository of prompts."""
    return Prompts(stand.scratch / "prompts", TEAM)


def leaders(stand: Stand) -> list[str]:
    """Return the operator pods that say that they lead."""
    return [name for name in operators(stand) if operator_metric(stand, name, "leader") == 1]


def operators(stand: Stand) -> list[str]:
    """Return the names of the running operator pods."""
    pods = stand.pods(OPERATOR_PODS, SYSTEM)
    return [str(pod["metadata"]["name"]) for pod in pods if is_ready(pod)]


def operator_metric(stand: Stand, pod: str, name: str) -> float:
    """Return the sum of an operator's metric over its series."""
    full = f"promptprefix_operator_{name}"
    try:
        lines = stand.kubectl.python(SYSTEM, pod, "operator", METRICS).splitlines()
    except ProgramError:  # a pod that is ending
        return 0.0
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.split("{")[0].split(" ")[0] == full)


def team_pods(stand: Stand) -> list[str]:
    """Return the names of the team's vLLM pods."""
    return [str(pod["metadata"]["name"]) for pod in stand.pods(TEAM_PODS)]


def wait_for_pods(stand: Stand, count: int) -> list[str]:
    """Wait until that many vLLM pods are there and Ready; return their names."""

    def ready() -> bool:
        pods = stand.pods(TEAM_PODS)
        return len(pods) == count and all(map(is_ready, pods))

    def state() -> str:
        return stand.kubectl("get", "pods", "-n", TEAM, "-o", "wide")

    wait_until(f"{count} vLLM pods are Ready", ready, 300, state)
    return team_pods(stand)


def wait_for_warm(stand: Stand, name: str, count: int) -> dict[str, Any]:
    """Wait until the newest generation is warm and pinned on that many pods."""

    def warm() -> bool:
        found = stand.prefix(name)
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return False  # an edit waits for more of its kind
        counts = [status.get(key) for key in ("warmPods", "pinnedPods")]
        return counts == [count, count] and condition(found, "Warm").get("status") == "True"

    wait_until(f"{name} is warm on {count} pods", warm, 120, lambda: stand.prefix(name))
    return stand.prefix(name)


def sidecar_words(stand: Stand, pod: str) -> list[str]:
    """Return the events of a sidecar's log, in order."""
    lines = stand.kubectl("logs", "-n", TEAM, pod, "-c", SIDECAR).splitlines()
    return [str(json.loads(line).get("event")) for line in lines if line.startswith("{")]


def warm_before_ready(words: list[str]) -> bool:
    """Whether the last ``ready`` follows a ``prefix pinned`` of the same life of the engine."""
    last = len(words) - 1 - words[::-1].index("ready")
    begin = max((i for i, word in enumerate(words[:last]) if word == "engine restarted"), default=0)
    return "prefix pinned" in words[begin:last]


def warm_ups(stand: Stand) -> dict[str, float]:
    """Return how often each pod's sidecar has warmed a prefix."""
    return {pod: stand.sidecar_metric(pod, "warm_ups_total") for pod in team_pods(stand)}


def test_helm_install(stand: Stand, before: frozenset[str]) -> None:
    chart, version = previous_chart(stand.scratch / "previous")
    print(f"installing version {version} of the chart")
    stand.helm.apply("install", RELEASE, chart, SYSTEM, values.promptprefix(stand.images))
    assert len(operators(stand)) == 2
    assert len(leaders(stand)) == 1
    assert len(objects(stand.kubectl) - before) > 10


def test_pods_start_without_injection_while_the_webhook_is_down(stand: Stand) -> None:
    scale = ("scale", "deployment/promptprefix-operator", "-n", SYSTEM)
    stand.kubectl(*scale, "--replicas=0")
    wait_until("no operator", lambda: not stand.pods(OPERATOR_PODS, SYSTEM), 60)
    stand.kubectl.apply(idle("idle", stand.base))
    stand.kubectl("rollout", "status", "-n", TEAM, "deployment/idle", "--timeout=60s")
    [pod] = stand.pods("app=idle")
    assert "initContainers" not in pod["spec"]
    stand.kubectl(*scale, "--replicas=2")

    def told() -> bool:
        events = stand.events("NotInjected")
        return any(e["involvedObject"]["name"] == pod["metadata"]["name"] for e in events)

    wait_until("an Event says that the pod was not injected", told, 90)
    wait_until("two operators", lambda: len(operators(stand)) == 2, 60)
    counts = [operator_metric(stand, each, "uninjected_pods") for each in operators(stand)]
    assert sorted(counts) == [0, 1]


def test_the_webhook_works_again_and_what_is_gone_is_not_counted(stand: Stand) -> None:
    # The webhook is skipped where it can't be reached: nodes learn of its new pods with a delay.
    def injected() -> bool:
        known = {pod["metadata"]["uid"] for pod in stand.pods("app=idle")}
        stand.kubectl("rollout", "restart", "-n", TEAM, "deployment/idle")

        def new() -> list[dict[str, Any]]:
            return [p for p in stand.pods("app=idle") if p["metadata"]["uid"] not in known]

        wait_until("a new pod of the Deployment", lambda: bool(new()), 30)
        return any("initContainers" in pod["spec"] for pod in new())

    wait_until("a new pod is injected", injected, 60, lambda: stand.pods("app=idle"))
    stand.kubectl("delete", "deployment/idle", "-n", TEAM)

    def forgotten() -> bool:
        return not any(operator_metric(stand, e, "uninjected_pods") for e in operators(stand))

    wait_until("no uninjected pod is counted", forgotten, 60)


def test_engines_of_the_chart_and_of_a_plain_manifest_join(stand: Stand) -> None:
    vllm = values.warm_vllm(stand.images, stand.base, stand.folders)
    began = time.monotonic()
    stand.kubectl.apply(engine_key(), plain_vllm(stand.base, stand.folders))
    stand.helm.apply("install", ENGINES, CHARTS / "warm-vllm", TEAM, vllm)
    pods = wait_for_pods(stand, 2)
    record(engines_start_s=time.monotonic() - began)
    [plain] = stand.pods(f"app={PLAIN}")
    assert plain["metadata"]["annotations"]["promptprefix.dev/injected"] == "hard"
    address = f"http://{plain['status']['podIP']}:8000/v1/models"
    ask = f"import urllib.request as u; print(u.urlopen('{address}', timeout=10).status)"
    with pytest.raises(ProgramError, match="401"):
        stand.kubectl.python(TEAM, pods[0], SIDECAR, ask)
    assert all(stand.sidecar_metric(pod, "engine_healthy") == 1 for pod in pods)


@pytest.mark.parametrize(("release", "where"), [(RELEASE, SYSTEM), (ENGINES, TEAM)])
def test_helm_test(stand: Stand, release: str, where: str) -> None:
    print(stand.helm("test", release, "-n", where, "--logs", "--timeout", "3m", timeout=200))


def test_a_prompt_repository_is_applied(stand: Stand, prompts: Prompts) -> None:
    prompts.commit(stand.kubectl, text("parcels"))
    resource = wait_for_warm(stand, NAME, 2)
    assert condition(resource, "Ready")["status"] == "True"
    assert resource["spec"]["content"]["configMapRef"]["name"] != NAME


def test_a_request_through_the_service_finds_the_prefix(stand: Stand) -> None:
    tokens = stand.prefix(NAME)["status"]["tokens"]
    usage = stand.chat(team_pods(stand)[0], text("parcels"), "Where is it?", ROUTER)
    assert usage["prompt_tokens_details"]["cached_tokens"] >= tokens >= 256


def test_an_edit_warms_the_new_text_and_no_pod_leaves_service(
    stand: Stand, prompts: Prompts
) -> None:
    old = stand.prefix(NAME)["status"]["fingerprint"]
    pods = team_pods(stand)
    with ReadinessHistory(stand.kubectl, TEAM, TEAM_PODS) as history:
        prompts.commit(stand.kubectl, text("letters"))

        def changed() -> bool:
            return stand.prefix(NAME)["status"]["fingerprint"] not in ("", old)

        wait_until("the new text has a fingerprint", changed, 60)
        wait_for_warm(stand, NAME, 2)
    assert not any(history.was_unready(pod) for pod in pods)
    usage = stand.chat(pods[0], text("letters"), "Where is it?", ROUTER)
    tokens = stand.prefix(NAME)["status"]["tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= tokens


def test_a_new_pod_is_warm_before_it_is_ready(stand: Stand) -> None:
    known = set(team_pods(stand))
    stand.kubectl("scale", f"deployment/{PLAIN}", "-n", TEAM, "--replicas=2")
    [new] = set(wait_for_pods(stand, 3)) - known
    assert warm_before_ready(sidecar_words(stand, new))
    wait_for_warm(stand, NAME, 3)


def test_a_restarted_engine_is_out_of_service_until_it_is_warm_again(stand: Stand) -> None:
    pod = str(stand.pods(f"app={PLAIN}")[0]["metadata"]["name"])
    with ReadinessHistory(stand.kubectl, TEAM, TEAM_PODS) as history:
        end = "import os, signal; os.kill(1, signal.SIGTERM)"
        stand.kubectl.python(TEAM, pod, "vllm", end)
        wait_until("the pod is not Ready", lambda: history.was_unready(pod), 60)
        wait_for_pods(stand, 3)
    words = sidecar_words(stand, pod)
    assert "engine restarted" in words
    assert warm_before_ready(words)
    wait_for_warm(stand, NAME, 3)


def test_a_drained_pod_is_replaced_by_a_warm_one(stand: Stand) -> None:
    victim = stand.pods(f"app={PLAIN}")[-1]
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    known = set(team_pods(stand))
    stand.kubectl("label", "pod", name, "-n", TEAM, "drain=yes")
    options = ("--pod-selector=drain=yes", "--delete-emptydir-data", "--ignore-daemonsets")
    try:
        stand.kubectl("drain", node, *options, "--timeout=90s")
    finally:
        stand.kubectl("uncordon", node)
    [new] = set(wait_for_pods(stand, 3)) - known
    assert warm_before_ready(sidecar_words(stand, new))
    wait_for_warm(stand, NAME, 3)


def test_text_in_a_secret_needs_the_right_to_read_it(stand: Stand) -> None:
    data = {"systemInstructions": base64.b64encode(text("salaries").encode()).decode()}
    stand.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": TEAM},
            "data": data,
        },
        prompt_prefix(SECRET, {"secretRef": {"name": SECRET}}),
    )

    def refused() -> bool:
        return condition(stand.prefix(SECRET), "Ready").get("reason") == "ContentForbidden"

    wait_until("the operator may not read it", refused, 60, lambda: stand.prefix(SECRET))
    assert "contentSecrets" in condition(stand.prefix(SECRET), "Ready")["message"]


def test_helm_upgrade_from_the_previous_version_keeps_pins_and_state(stand: Stand) -> None:
    state = _kept_state(stand)
    warmed = warm_ups(stand)
    given = {**values.promptprefix(stand.images), "contentSecrets": {TEAM: [SECRET]}}
    stand.helm.apply("upgrade", RELEASE, CHART, SYSTEM, given)
    wait_for_warm(stand, NAME, 3)
    # Ready comes as soon as the pods whose sidecars are back have it: the third may still follow.
    wait_for_warm(stand, SECRET, 3)
    assert _kept_state(stand) == state
    # Only the text that could not be read before is new.
    due = {pod: count + 1 for pod, count in warmed.items()}
    wait_until("each pod counts one new warm-up", lambda: warm_ups(stand) == due, 30)
    evicted = [stand.sidecar_metric(pod, "premature_evictions_total") for pod in warmed]
    assert not any(evicted)


def _kept_state(stand: Stand) -> dict[str, Any]:
    """Return what the operator keeps for itself and what an upgrade must not touch."""
    secret = stand.kubectl.read("secret", "promptprefix-operator-tls", "-n", SYSTEM)["data"]
    bundle = stand.kubectl.read("configmap", "promptprefix-ca", "-n", TEAM)["data"]
    return {"authority": secret["ca.crt"], "bundle": bundle}


def test_another_operator_takes_over_without_a_new_warm_up(stand: Stand) -> None:
    [old] = leaders(stand)
    warmed = warm_ups(stand)
    stand.kubectl("delete", "pod", old, "-n", SYSTEM, "--wait=false")
    began = time.monotonic()
    wait_until("another operator leads", lambda: leaders(stand) not in ([], [old]), 60)
    record(failover_s=time.monotonic() - began)
    marker = prompt_prefix("marker", {"inline": {"systemInstructions": text("stamps")}})
    marker["spec"]["suspend"] = True
    stand.kubectl.apply(marker)
    stand.wait_ready("marker")
    assert warm_ups(stand) == warmed
    assert wait_for_warm(stand, NAME, 3)["status"]["warmPods"] == 3


def test_no_text_of_a_prompt_is_in_events_or_logs(stand: Stand) -> None:
    said = [stand.kubectl("get", "events", "-A", "-o", "json")]
    for pod in operators(stand):
        said.append(stand.kubectl("logs", "-n", SYSTEM, pod))
    for pod in team_pods(stand):
        said.append(stand.kubectl("logs", "-n", TEAM, pod, "-c", SIDECAR))
    assert all(words for words in said)
    assert not any("be exact" in words for words in said)


def test_a_deleted_prefix_is_unpinned(stand: Stand) -> None:
    stand.kubectl("delete", "promptprefix", "--all", "-n", TEAM)

    def unpinned() -> bool:
        return not any(stand.sidecar_metric(pod, "pinned_blocks") for pod in team_pods(stand))

    wait_until("no pod pins anything", unpinned, 30)


def test_helm_uninstall_leaves_the_engines_at_work(stand: Stand) -> None:
    stand.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout", "2m", timeout=150)
    assert not stand.pods(OPERATOR_PODS, SYSTEM)
    pods = wait_for_pods(stand, 3)
    usage = stand.chat(pods[0], "You are brief.", "Hello", "http://127.0.0.1:8000")
    assert usage["prompt_tokens"] > 0


def test_install_again_beside_running_engines(stand: Stand) -> None:
    began = time.monotonic()
    stand.helm.apply("install", RELEASE, CHART, SYSTEM, values.promptprefix(stand.images))
    installed = time.monotonic()
    inline = {"inline": {"systemInstructions": text("trains")}}
    stand.kubectl.apply(prompt_prefix("first", inline))
    wait_for_warm(stand, "first", 3)
    record(install_s=installed - began, install_to_first_ready_s=time.monotonic() - began)


def test_nothing_is_left_but_what_is_kept(stand: Stand, before: frozenset[str]) -> None:
    stand.kubectl("delete", "promptprefix", "--all", "-n", TEAM)
    stand.helm("uninstall", ENGINES, "-n", TEAM, "--wait", "--timeout", "2m", timeout=150)
    stand.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout", "2m", timeout=150)
    ours = (f"deployment/{PLAIN}", f"secret/{SECRET}", f"secret/{ENGINE_KEY}")
    stand.kubectl("delete", *ours, "-n", TEAM)
    stand.kubectl("delete", "configmap", "--all", "-n", TEAM)

    def left() -> frozenset[str]:
        # Kubernetes puts its own CA into each namespace again.
        found = objects(stand.kubectl) - before
        return frozenset(each for each in found if not each.endswith("/kube-root-ca.crt"))

    wait_until("nothing but the CRD is left", lambda: left() == KEPT, 60, left)
