"""The generated CRD on a real API server: what it accepts, fills in, refuses and explains."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import Cluster, ClusterError

pytestmark = pytest.mark.timeout(1800)  # the first run builds Kubernetes

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "support-triage.yaml"

POOL = {"inferencePoolRef": {"name": "llm"}}
ONE_SELECTION = "pods must have exactly one of selector and inferencePoolRef"
TOO_LONG = "x" * 262_145


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A control plane that knows the resource; nothing here needs a node."""
    with Cluster.start(progress=print, node=False) as started:
        started.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        started.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        started.kubectl("create", "namespace", "ml")
        yield started


def manifest(**spec: Any) -> dict[str, Any]:
    """Return a good manifest with fields of its spec replaced; ``None`` leaves one out."""
    good: dict[str, Any] = {
        "model": "demo",
        "pods": {"selector": {"matchLabels": {"app": "vllm"}}},
        "content": {"inline": {"systemInstructions": "You are a bot."}},
    }
    merged = {key: value for key, value in {**good, **spec}.items() if value is not None}
    return {
        "apiVersion": "promptprefix.dev/v1alpha1",
        "kind": "PromptPrefix",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": merged,
    }


def apply(server: Cluster, body: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """Apply ``body`` server-side and return the object as stored."""
    answer = server.kubectl(
        "apply", "--server-side", "-o", "json", *arguments, "-f", "-", input=json.dumps(body)
    )
    result: dict[str, Any] = json.loads(answer)
    return result


def inline(**fields: str) -> dict[str, Any]:
    return {"inline": fields}


def selector(**fields: Any) -> dict[str, Any]:
    return {"selector": fields}


def expression(**fields: Any) -> dict[str, Any]:
    return selector(matchExpressions=[fields])


def window(**fields: str) -> dict[str, Any]:
    """Return a good window with fields replaced."""
    good = {"name": "office", "schedule": "30 7 * * MON-FRI", "duration": "11h"}
    return {"windows": [good | fields]}


REPLICAS = ("spec.replicas", "a number from 1 to 10000, a percentage from 1% to 100% or the word")
FIVE_FIELDS = ("spec.windows[0].schedule", "must be a cron expression of five fields")
NO_CRON = ("spec.windows[0].schedule", "must have minutes 0-59, hours 0-23, days of the month")
TIME_ZONE = ("spec.windows[0].timeZone", "must be an IANA time zone that the API server knows")
VALUES = ("spec.pods.selector.matchExpressions[0]", "values must be given for the operators")
EMPTY = ("spec.content.inline", "must declare systemInstructions, defaultModeSpecs")
ONE_SOURCE = ("spec.content", "exactly one of inline, configMapRef and secretRef")
EMPTY_SELECTOR = ("spec.pods.selector", "an empty one selects every pod")
REF = {"configMapRef": {"name": "text"}}
SECRET_REF = {"secretRef": {"name": "text"}}

REFUSED: tuple[tuple[str, dict[str, Any], tuple[str, str]], ...] = (
    ("both sources", {"content": inline(systemInstructions="x") | REF}, ONE_SOURCE),
    ("ConfigMap and Secret", {"content": REF | SECRET_REF}, ONE_SOURCE),
    (
        "all sources",
        {"content": inline(systemInstructions="x") | REF | SECRET_REF},
        ONE_SOURCE,
    ),
    ("no source", {"content": {}}, ONE_SOURCE),
    ("no content", {"content": None}, ("spec.content", "Required value")),
    ("empty inline", {"content": inline()}, EMPTY),
    ("empty text", {"content": inline(systemInstructions="", toolDefinitions=" [ ] ")}, EMPTY),
    ("options alone", {"content": inline(chatTemplateOptions='{"a": 1}')}, EMPTY),
    (
        "too long a text",
        {"content": inline(systemInstructions=TOO_LONG)},
        ("spec.content.inline.systemInstructions", "Too long"),
    ),
    (
        "tools are no array",
        {"content": inline(systemInstructions="x", toolDefinitions='{"type": "function"}')},
        ("spec.content.inline.toolDefinitions", "must be the JSON text of an array"),
    ),
    (
        "tools are YAML",
        {"content": {"inline": {"systemInstructions": "x", "toolDefinitions": []}}},
        ("spec.content.inline.toolDefinitions", "expected string"),
    ),
    (
        "options are no object",
        {"content": inline(systemInstructions="x", chatTemplateOptions="[]")},
        ("spec.content.inline.chatTemplateOptions", "must be the JSON text of an object"),
    ),
    (
        "ConfigMap without a name",
        {"content": {"configMapRef": {}}},
        ("spec.content.configMapRef.name", "Required value"),
    ),
    (
        "ConfigMap with a bad name",
        {"content": {"configMapRef": {"name": "My Text"}}},
        ("spec.content.configMapRef.name", "should match"),
    ),
    (
        "Secret with a key",
        {"content": {"secretRef": {"name": "a", "key": "b"}}},
        ("spec.content.secretRef.key", "field not declared in schema"),
    ),
    ("no model", {"model": None}, ("spec.model", "Required value")),
    ("empty model", {"model": ""}, ("spec.model", "at least 1 chars long")),
    ("no pods", {"pods": None}, ("spec.pods", "Required value")),
    ("empty selector", {"pods": selector()}, EMPTY_SELECTOR),
    ("empty labels", {"pods": selector(matchLabels={}, matchExpressions=[])}, EMPTY_SELECTOR),
    (
        "bad label value",
        {"pods": selector(matchLabels={"app": "a b"})},
        ("spec.pods.selector.matchLabels.app", "should match"),
    ),
    ("In without values", {"pods": expression(key="app", operator="In")}, VALUES),
    (
        "Exists with values",
        {"pods": expression(key="app", operator="Exists", values=["x"])},
        VALUES,
    ),
    (
        "unknown operator",
        {"pods": expression(key="app", operator="Is", values=["x"])},
        ("spec.pods.selector.matchExpressions[0].operator", 'supported values: "In", "NotIn"'),
    ),
    (
        "no key",
        {"pods": expression(operator="Exists")},
        ("spec.pods.selector.matchExpressions[0].key", "Required value"),
    ),
    ("replicas 0", {"replicas": 0}, REPLICAS),
    ("replicas -1", {"replicas": -1}, REPLICAS),
    ("replicas 10001", {"replicas": 10_001}, REPLICAS),
    ("replicas Some", {"replicas": "Some"}, REPLICAS),
    ("replicas 0%", {"replicas": "0%"}, REPLICAS),
    ("replicas 101%", {"replicas": "101%"}, REPLICAS),
    ("replicas as text", {"replicas": "2"}, REPLICAS),
    ("replicas 1.5", {"replicas": 1.5}, ("spec.replicas", "must be of type integer,string")),
    ("unknown pinning", {"pinning": "hard"}, ("spec.pinning", 'supported values: "Hard", "Soft"')),
    ("unknown policy", {"lint": {"policy": "Fail"}}, ("spec.lint.policy", '"Warn", "Enforce"')),
    (
        "rule ignored twice",
        {"lint": {"ignore": ["short-prefix", "short-prefix"]}},
        ("spec.lint.ignore", "duplicate entries"),
    ),
    ("suspend as text", {"suspend": "yes"}, ("spec.suspend", "expected boolean")),
    ("unknown field", {"modell": "x"}, ("spec.modell", "field not declared in schema")),
    ("field of no version", {"normalise": True}, ("spec.normalise", "not declared in schema")),
    ("priority 1001", {"priority": 1_001}, ("spec.priority", "should be less than or equal to")),
    ("unknown onIdle", {"onIdle": "Drop"}, ("spec.onIdle", 'supported values: "Keep", "Evict"')),
    ("no idle time", {"idleTTL": "0s"}, ("spec.idleTTL", "must be longer than 0s")),
    ("endless idle time", {"idleTTL": "8785h"}, ("spec.idleTTL", "and at most 8784h")),
    ("idle time without a unit", {"idleTTL": "600"}, ("spec.idleTTL", "should match")),
    ("negative idle time", {"idleTTL": "-10m"}, ("spec.idleTTL", "should match")),
    ("tenant in capitals", {"tenant": "Acme"}, ("spec.tenant", "should match")),
    ("two tenants", {"tenant": "a,b"}, ("spec.tenant", "should match")),
    ("no tenant", {"tenant": ""}, ("spec.tenant", "at least 1 chars long")),
    ("salt without a Secret", {"cacheSaltRef": {}}, ("spec.cacheSaltRef.name", "Required value")),
    ("six fields", window(schedule="0 30 7 * * MON-FRI"), FIVE_FIELDS),
    ("four fields", window(schedule="30 7 * MON-FRI"), FIVE_FIELDS),
    ("@daily", window(schedule="@midnight"), FIVE_FIELDS),
    ("minute 60", window(schedule="60 7 * * *"), NO_CRON),
    ("hour 24", window(schedule="0 24 * * *"), NO_CRON),
    ("day of month 32", window(schedule="0 7 32 * *"), NO_CRON),
    ("month 13", window(schedule="0 7 * 13 *"), NO_CRON),
    ("weekday 8", window(schedule="0 7 * * 8"), NO_CRON),
    ("no pods", {"pods": {}}, ("spec.pods", ONE_SELECTION)),
    (
        "selector and pool",
        {"pods": {"selector": {"matchLabels": {"app": "v"}}, **POOL}},
        ("spec.pods", ONE_SELECTION),
    ),
    ("zone nowhere", window(timeZone="Europe/Atlantis"), TIME_ZONE),
    ("zone of the server", window(timeZone="Local"), TIME_ZONE),
    ("zone as an offset", window(timeZone="+01:00"), ("spec.windows[0].timeZone", "should match")),
    ("window of no time", window(duration="0h"), ("spec.windows[0].duration", "longer than 0s")),
    ("window of years", window(duration="9000h"), ("spec.windows[0].duration", "at most 8784h")),
    ("no lead time", window(leadTime="0m"), ("spec.windows[0].leadTime", "longer than 0s")),
    ("window's name", window(name="Office"), ("spec.windows[0].name", "should match")),
    (
        "one name twice",
        {"windows": window()["windows"] * 2},
        ("spec.windows", "duplicate entries for key"),
    ),
    (
        "17 windows",
        {"windows": [*(window(name=f"w{i}")["windows"][0] for i in range(17))]},
        ("spec.windows", "must have at most 16 items"),
    ),
)


@pytest.mark.parametrize(
    ("spec", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(server: Cluster, spec: dict[str, Any], expected: tuple[str, str]) -> None:
    field, rule = expected
    with pytest.raises(ClusterError) as caught:
        apply(server, manifest(**spec))
    message = str(caught.value)
    assert field in message, message[:2000]
    assert rule in message, message[:2000]


ACCEPTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("replicas 1", {"replicas": 1}),
    ("replicas 10000", {"replicas": 10_000}),
    ("ConfigMap", {"content": REF}),
    ("Secret", {"content": SECRET_REF}),
    ("longest text", {"content": inline(systemInstructions=TOO_LONG[1:])}),
    ("tools alone", {"content": inline(toolDefinitions='[\n{"type": "function"}\n]\n')}),
    ("mode specs alone", {"content": inline(defaultModeSpecs="x", toolDefinitions="")}),
    ("not in", {"pods": expression(key="example.com/app", operator="NotIn", values=["a", ""])}),
    ("InferencePool", {"pods": POOL}),
    ("percentage", {"replicas": "50%"}),
    ("idle time", {"idleTTL": "1h30m", "onIdle": "Evict", "priority": -1_000}),
    ("salt", {"tenant": "a-1", "cacheSaltRef": {"name": "tenant-a", "key": "salt"}}),
    (
        "windows",
        {
            "windows": [
                window(timeZone="Europe/Berlin", leadTime="10m")["windows"][0],
                window(name="b", schedule="*/15 0-5 L feb,mar sun", timeZone="UTC")["windows"][0],
                window(name="c", schedule="0 0 * * 5L,fri#2", timeZone="Etc/GMT+1")["windows"][0],
            ]
        },
    ),
    ("exists", {"pods": expression(key="app", operator="Exists", values=[])}),
)


@pytest.mark.parametrize("spec", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_accepted(server: Cluster, spec: dict[str, Any]) -> None:
    stored = apply(server, manifest(**spec), "--dry-run=server")
    for key, value in spec.items():
        if key != "content":
            assert stored["spec"][key] == value


def test_example_is_stored_byte_for_byte_and_defaults_are_filled(server: Cluster) -> None:
    declared = yaml.safe_load(EXAMPLE.read_text())
    server.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    stored = json.loads(server.kubectl("get", "-n", "ml", "pp", "support-triage", "-o", "json"))
    expected = copy.deepcopy(declared["spec"])
    expected["content"]["inline"]["chatTemplateOptions"] = "{}"
    expected["lint"] = {"policy": "Warn"}
    expected["suspend"] = False
    expected["normalizeRequests"] = False
    expected["priority"] = 0
    expected["onIdle"] = "Keep"
    assert stored["spec"] == expected


def test_defaults_of_the_smallest_manifest(server: Cluster) -> None:
    stored = apply(server, manifest(), "--dry-run=server")
    assert stored["spec"] == manifest()["spec"] | {
        "content": inline(
            systemInstructions="You are a bot.", toolDefinitions="[]", chatTemplateOptions="{}"
        ),
        "replicas": "All",
        "priority": 0,
        "pinning": "Hard",
        "onIdle": "Keep",
        "lint": {"policy": "Warn"},
        "suspend": False,
        "normalizeRequests": False,
    }


def test_text_survives_byte_for_byte(server: Cluster) -> None:
    text = "\u00e9 e\u0301\r\n\ttab \u2028 🙂 'quotes' \"too\" 1.0 {{x}} \\n \n\n"
    stored = apply(server, manifest(content=inline(systemInstructions=text)), "--dry-run=server")
    assert stored["spec"]["content"]["inline"]["systemInstructions"] == text


def test_client_side_apply_refuses_unknown_fields_too(server: Cluster) -> None:
    with pytest.raises(ClusterError, match=r'unknown field "spec\.idleTtl"'):
        server.kubectl("create", "-f", "-", input=json.dumps(manifest(idleTtl="600s")))


def test_the_zone_of_a_window_is_filled_in(server: Cluster) -> None:
    stored = apply(server, manifest(**window()), "--dry-run=server")
    assert stored["spec"]["windows"] == [window()["windows"][0] | {"timeZone": "UTC"}]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("promptprefix", "A prompt prefix: the text that many requests begin with"),
        ("promptprefix.spec.content.inline", "Declared text in the resource itself"),
        ("promptprefix.spec.content.inline", "Appended to the system text after a blank line"),
        ("promptprefix.spec.replicas", "a number, a percentage (rounded up) or All"),
        ("promptprefix.spec.windows.schedule", "a cron expression of five fields"),
        ("promptprefix.status.nextTransitionTime", "begin or cease to hold the prefix next"),
        ("promptprefix.status.lint.tokensLost", "none of them can be reused"),
    ],
)
def test_explain(server: Cluster, path: str, words: str) -> None:
    # The server publishes a new resource's schema a moment after it serves the resource.
    deadline = time.monotonic() + 30
    while True:
        try:
            answer = server.kubectl("explain", path)
            break
        except ClusterError:
            assert time.monotonic() < deadline
    assert words in " ".join(answer.split())
    assert "<no description>" not in answer


STATUS = {
    "observedGeneration": 1,
    "fingerprint": "pp1:sha256:00",
    "tokens": 1888,
    "warm": "2/2",
    "activeWindow": "office",
    "nextTransitionTime": "2026-01-01T18:30:00Z",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Warm",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


def test_columns_and_status_subresource(server: Cluster) -> None:
    server.kubectl("apply", "--server-side", "-f", str(EXAMPLE))
    name = ("-n", "ml", "promptprefix", "support-triage")
    server.kubectl("patch", *name, "--type=merge", "-p", json.dumps({"status": {"warm": "0/0"}}))
    assert "0/0" not in server.kubectl("get", *name)
    body = json.dumps({"status": STATUS})
    server.kubectl("patch", *name, "--subresource=status", "--type=merge", "-p", body)

    header, row = server.kubectl("get", "-n", "ml", "pp", "support-triage").splitlines()
    assert header.split() == ["NAME", "READY", "WARM", "TOKENS", "WINDOW", "AGE"]
    assert row.split()[:5] == ["support-triage", "True", "2/2", "1888", "office"]
    wide, row = server.kubectl("get", *name, "-o", "wide").splitlines()
    names = ["NAME", "READY", "WARM", "TOKENS", "WINDOW", "FINGERPRINT", "AGE"]
    assert wide.split() == names
    assert "pp1:sha256:00" in row
    listed = server.kubectl("get", "-n", "ml", "promptprefix", "-o", "name")
    assert listed.split() == ["promptprefix.promptprefix.dev/support-triage"]
    assert "promptprefixes" in server.kubectl("api-resources", "--categories=promptprefix")
