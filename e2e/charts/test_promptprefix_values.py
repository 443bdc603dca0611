"""The values: each is used, described in the README, and checked before anything is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from e2e.charts.documented_values import documented_values, table
from e2e.charts.installation import CHART, EVERYTHING, GATEWAY, changed, objects
from e2e.charts.render import CHARTS, HelmError, Values, render

FOLDER: Path = CHARTS / CHART
DIGEST = f"sha256:{'a' * 64}"
CPU: dict[str, Any] = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
ENV = [{"name": "TZ", "value": "Europe/Berlin"}]
ZONES = "topology.kubernetes.io/zone"
SPREAD = [{"maxSkew": 2, "topologyKey": ZONES, "whenUnsatisfiable": "DoNotSchedule"}]
PEERS = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
HOSTS = [{"ip": "10.0.0.1", "hostnames": ["kubernetes.default.svc"]}]

OTHER: dict[str, Any] = {
    "namespaces": ["ml", "chat", "search"],
    "contentSecrets": {"chat": ["prompts"]},
    "limits": {"chat": {"budgetShare": 0.25}},
    "imagePullPolicy": "Always",
    "imagePullSecrets": [],
    "podSecurityContext": {"runAsUser": 1000},
    "containerSecurityContext": {"readOnlyRootFilesystem": False},
    "operator.servingNames": ["operator.example.com"],
    "operator.routerServiceAccounts": ["edge/gateway"],
    "webhook.certificate.source": "operator",
    "webhook.certificate.issuerRef": {"name": "vault"},
    "router.tenant": "chat",
    "router.additionalTenants": [],
    "router.undeclaredMode": "least-load",
    "router.loadFactor": 1.5,
    "router.shedding.objectives": ["batch"],
    "router.mode": "standalone",
    "router.gateway.tls": "off",
    "router.gateway.inferencePool.failureMode": "FailClose",
    "router.gateway.inferencePool.targetPorts": [8000, 8001],
    "router.service.type": "LoadBalancer",
    "router.autoscaling.behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    "networkPolicy.apiServerPorts": [443],
    "networkPolicy.dnsPorts": [5353],
    "networkPolicy.routerClients": PEERS,
    "networkPolicy.metricsClients": PEERS,
    "test.namespace": "chat",
    "test.selector": {"app": "other"},
}
"""Another allowed value by path; by the last word of the path; else by type."""
OTHER_BY_WORD: dict[str, Any] = {
    "affinity": {"podAntiAffinity": {}},
    "digest": DIGEST,
    "dnsPolicy": "Default",
    "extraEnv": ENV,
    "hostAliases": HOSTS,
    "interval": "1m",
    "logLevel": "debug",
    "resources": CPU,
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "topologySpreadConstraints": SPREAD,
}
DOCUMENTED = documented_values(CHART)
CONTEXT = {
    "router.replicas": changed(EVERYTHING, "router.autoscaling.enabled", False),
    "router.mode": GATEWAY,
    **{each.path: GATEWAY for each in DOCUMENTED if each.path.startswith("router.gateway.")},
}
"""Where a value has an effect, if not where everything is switched on."""

MAY_BE_NULL = {"webhook.sidecar.runAsUser"}


def other(path: str, default: object) -> object:
    word = path.rpartition(".")[2]
    if path in OTHER:
        return OTHER[path]
    if word in OTHER_BY_WORD:
        return OTHER_BY_WORD[word]
    if isinstance(default, dict):
        return {"changed": "yes"}
    if isinstance(default, int):
        return default + 1
    assert isinstance(default, str), f"{path}: say what else it may be"
    return f"{default}changed"


def current(values: Values, path: str, default: object) -> object:
    """Return what ``values`` has at ``path``."""
    place: object = values
    for part in path.split("."):
        if not isinstance(place, dict) or part not in place:
            return default
        place = place[part]
    return place


@pytest.mark.parametrize("path", [each.path for each in DOCUMENTED])
def test_every_value_has_an_effect(path: str) -> None:
    (documented,) = (each for each in DOCUMENTED if each.path == path)
    values = CONTEXT.get(path, EVERYTHING)
    default = current(values, path, documented.default)
    value = (not default) if isinstance(default, bool) else other(path, default)
    assert value != default
    assert render(CHART, changed(values, path, value)) != objects(values)


def test_the_readme_has_the_table_of_the_values() -> None:
    stale = table(CHART) not in (FOLDER / "README.md").read_text()
    assert not stale, f"run `python -m e2e.charts.documented_values {CHART}`"


def test_every_meaning_is_a_sentence() -> None:
    assert [each.path for each in DOCUMENTED if not each.meaning.endswith(".")] == []


def test_the_schema_is_strict_wherever_the_shape_is_ours() -> None:
    """Free-form are only maps of texts, and what Kubernetes defines."""
    sections = {each.path.rpartition(".")[0] for each in DOCUMENTED} - {""}
    values: Values = {"unknown": 1}
    for section in sections:
        values = changed(values, f"{section}.unknown", 1)
    said = refusal(values)
    assert "at '': additional properties 'unknown' not allowed" in said
    for section in sections:
        path = section.replace(".", "/")
        assert f"at '/{path}': additional properties 'unknown' not allowed" in said


def test_no_value_can_be_taken_away_but_those_that_say_so() -> None:
    """A null removes a default; a template would read it as false or as nothing."""
    taken = {each.path for each in DOCUMENTED} - MAY_BE_NULL
    values: Values = {}
    for path in taken:
        values = changed(values, path, None)
    missing = set(
        re.findall(r"'(\w+)'", " ".join(re.findall("missing propert.*", refusal(values))))
    )
    assert missing == {path.rpartition(".")[2] for path in taken}


def refusal(values: Values) -> str:
    """Return what Helm says against values."""
    with pytest.raises(HelmError) as caught:
        render(CHART, values)
    return str(caught.value)


REFUSED: list[tuple[str, object]] = [
    ("namespaces", "ml"),
    ("namespaces", ["ml", "ml"]),
    ("namespaces/0", ["ML_1"]),
    ("contentSecrets", {"ML_1": ["a"]}),
    ("contentSecrets/ml", {"ml": []}),
    ("contentSecrets/ml", {"ml": "prompts"}),
    ("contentSecrets/ml/0", {"ml": ["Prompts!"]}),
    ("limits", {"ML_1": {"budgetShare": 0.5}}),
    ("limits/ml", {"ml": 0.5}),
    ("limits/ml", {"ml": {}}),
    ("limits/ml", {"ml": {"share": 0.5}}),
    ("limits/ml/budgetShare", {"ml": {"budgetShare": 1.5}}),
    ("limits/ml/budgetShare", {"ml": {"budgetShare": "50%"}}),
    ("limits/*/maxPriority", {"*": {"maxPriority": 1001}}),
    ("crds/enabled", "yes"),
    ("imagePullPolicy", "Sometimes"),
    ("imagePullSecrets/0", ["registry"]),
    ("commonLabels/team", {"team": 1}),
    ("podSecurityContext", "restricted"),
    ("priorityClass/value", 2_000_000_000),
    ("operator/replicas", 0),
    ("operator/replicas", "two"),
    ("operator/image/tag", "a b"),
    ("operator/image/digest", "latest"),
    ("operator/image/repository", "Operator"),
    ("operator/image/registry", "https://ghcr.io"),
    ("operator/logLevel", "verbose"),
    ("operator/resyncSeconds", 0),
    ("operator/connectedSeconds", -1),
    ("operator/connectedReadySeconds", -1),
    ("operator/versionIdleSeconds", 0),
    ("operator/versionMaxAgeSeconds", 0),
    ("operator/leaseSeconds", 5),
    ("operator/servingNames/0", ["a,b"]),
    ("operator/routerServiceAccounts/0", ["gateway"]),
    ("operator/extraEnv/0", [{"value": "x"}]),
    ("operator/resources", {"request": {}}),
    ("operator/resources/limits/memory", {"limits": {"memory": "2 GB"}}),
    ("operator/podDisruptionBudget/maxUnavailable", 0),
    ("operator/tolerations/0/effect", [{"effect": "Never"}]),
    ("operator/topologySpreadConstraints/0", [{"maxSkew": 1}]),
    ("operator/hostAliases/0", [{"ip": "10.0.0.1"}]),
    ("operator/dnsPolicy", "Sometimes"),
    ("webhook/timeoutSeconds", 31),
    ("webhook/certificate/source", "vault"),
    ("webhook/certificate/issuerRef", {"kind": "Issuer"}),
    ("webhook/sidecar/resources", {"claims": []}),
    ("webhook/sidecar/runAsUser", 0),
    ("webhook/sidecar/readyTimeoutSeconds", 0),
    ("webhook/sidecar/warmChunkTokens", 0),
    ("router/tenant", "ML_1"),
    ("router/additionalTenants/0", ["a" * 44]),
    ("router/replicas", 0),
    ("router/tenantHeader", "X-Team"),
    ("router/workers", 0),
    ("router/maxRequestBytes", 100),
    ("router/maxConnections", 0),
    ("router/decisionTimeoutMs", 0),
    ("router/memoEntries", 0),
    ("router/maxTextBytes", -1),
    ("router/undeclaredMode", "exact"),
    ("router/preciseMaxBlocks", 0),
    ("router/preciseTimeoutMs", 0),
    ("router/historyChunks", 0),
    ("router/tokensPerActiveRequest", 0),
    ("router/loadFactor", 0.9),
    ("router/shedding/saturatedAt", -1),
    ("router/shedding/objectives/0", ["a,b"]),
    ("router/shedding/header", "X-Objective"),
    ("router/loadSlack", 0),
    ("router/loadIntervalMs", 1),
    ("router/engineIntervalMs", -1),
    ("router/healthIntervalSeconds", 0),
    ("router/idleTimeoutSeconds", 0),
    ("router/drainSeconds", -1),
    ("router/envoy/concurrency", 0),
    ("router/mode", "proxy"),
    ("router/gateway/tls", True),
    ("router/gateway/inferencePool/targetPorts", []),
    ("router/gateway/inferencePool/failureMode", "Open"),
    ("router/service/type", "Ingress"),
    ("router/service/port", 70_000),
    ("router/autoscaling/minReplicas", 0),
    ("networkPolicy/apiServerPorts", []),
    ("networkPolicy/routerClients/0", [{"namespaces": ["ml"]}]),
    ("metrics/serviceMonitor/interval", "often"),
    ("test/selector/app", {"app": 1}),
    ("test/timeoutSeconds", 0),
]
"""The path in Helm's message, and what stands at its longest part that is a value."""


@pytest.fixture(scope="module")
def refusals() -> dict[int, str]:
    """What Helm says against each case: it names all that is wrong, so one run serves many."""
    rounds: list[dict[str, int]] = []
    for number, (path, _) in enumerate(REFUSED):
        target = target_of(path)
        free = next((each for each in rounds if target not in each), None)
        if free is None:
            rounds.append(free := {})
        free[target] = number
    said: dict[int, str] = {}
    for cases in rounds:
        values: Values = {}
        for target, number in cases.items():
            values = changed(values, target, REFUSED[number][1])
        said |= dict.fromkeys(cases.values(), refusal(values))
    return said


def target_of(path: str) -> str:
    known = {each.path for each in DOCUMENTED}
    parts = path.split("/")
    ends = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(end for end in ends if end in known)


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[path for path, _ in REFUSED])
def test_a_wrong_value_is_refused_with_its_path(number: int, refusals: dict[int, str]) -> None:
    assert f"at '/{REFUSED[number][0]}'" in refusals[number]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"namespaces": ["ml"], "contentSecrets": {"chat": ["prompts"]}},
            "contentSecrets.chat: not a served namespace; namespaces has: ml",
        ),
        (
            {"namespaces": ["ml"], "limits": {"*": {"maxPriority": 1}, "chat": {"maxPriority": 1}}},
            "limits.chat: not a served namespace; namespaces has: ml",
        ),
        ({"router": {"tenant": "ml"}}, "router.tenant: ml is not a served namespace"),
        (
            {"router": {"additionalTenants": ["ml"]}},
            "router.additionalTenants: ml is not a served namespace",
        ),
        (
            {"router": {"mode": "gateway"}},
            "router.gateway.inferencePool.selector: give labels of the engines' pods",
        ),
        (
            {
                "router": {
                    "mode": "gateway",
                    "gateway": {"tls": "files", "inferencePool": {"create": False}},
                }
            },
            "router.gateway.tlsSecret: tls files needs a Secret",
        ),
        ({"test": {"namespace": "ml"}}, "test.namespace: ml is not a served namespace"),
        ({"test": {"model": "m"}}, "test.selector: give labels of the pods"),
        (
            {"router": {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}},
            "router.autoscaling.maxReplicas: must be at least",
        ),
        (
            {"operator": {"extraEnv": [{"name": "PROMPTPREFIX_NAMESPACES", "value": "x"}]}},
            "operator.extraEnv: PROMPTPREFIX_NAMESPACES stands twice",
        ),
        *(
            (
                {"operator": {"extraEnv": [{"name": name, "value": "false"}]}},
                "operator.extraEnv: remove PROMPTPREFIX_LEADER_ELECTION",
            )
            for name in ("PROMPTPREFIX_LEADER_ELECTION", "promptprefix_leader_election")
        ),
        (
            {"operator": {"extraEnv": [{"name": "promptprefix_namespaces", "value": "x"}]}},
            "operator.extraEnv: promptprefix_namespaces stands twice",
        ),
        ({"router": {"extraEnv": [*ENV, *ENV]}}, "router.extraEnv: TZ stands twice"),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(values: Values, message: str) -> None:
    assert message in refusal(values)


@pytest.mark.parametrize(
    "values",
    [
        {"global": {"anything": 1}},
        {"enabled": True},
        {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
        {"operator": {"resources": {"requests": {"cpu": 1}, "limits": {}}}},
        {"operator": {"podDisruptionBudget": {"maxUnavailable": "50%"}}},
    ],
)
def test_usual_values_are_accepted(values: Values) -> None:
    assert objects(values)


def test_a_null_takes_a_default_away() -> None:
    values = {"podSecurityContext": {"runAsUser": None}}
    (deployment,) = (
        each
        for each in objects(values)
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "promptprefix-operator")
    )
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert "runAsUser" not in context
    assert context["runAsGroup"] == 65532
