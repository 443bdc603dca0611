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


REPLICAS = ("spec.replicas", "a number from 1 to 10000 or the word All")
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
    ("no selector", {"pods": {}}, ("spec.pods.selector", "Required value")),
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
    ("replicas 50%", {"replicas": "50%"}, REPLICAS),
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
    ("field of a later version", {"priority": 1}, ("spec.priority", "not declared in schema")),
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
    assert stored["spec"] == expected


def test_defaults_of_the_smallest_manifest(server: Cluster) -> None:
    stored = apply(server, manifest(), "--dry-run=server")
    assert stored["spec"] == manifest()["spec"] | {
        "content": inline(
            systemInstructions="You are a bot.", toolDefinitions="[]", chatTemplateOptions="{}"
        ),
        "replicas": "All",
        "pinning": "Hard",
        "lint": {"policy": "Warn"},
        "suspend": False,
    }


def test_text_survives_byte_for_byte(server: Cluster) -> None:
    text = "\u00e9 e\u0301\r\n\ttab \u2028 🙂 'quotes' \"too\" 1.0 {{x}} \\n \n\n"
    stored = apply(server, manifest(content=inline(systemInstructions=text)), "--dry-run=server")
    assert stored["spec"]["content"]["inline"]["systemInstructions"] == text


def test_client_side_apply_refuses_unknown_fields_too(server: Cluster) -> None:
    with pytest.raises(ClusterError, match=r'unknown field "spec\.idleTTL"'):
        server.kubectl("create", "-f", "-", input=json.dumps(manifest(idleTTL="600s")))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("promptprefix", "A prompt prefix: the text that many requests begin with"),
        ("promptprefix.spec.content.inline", "Declared text in the resource itself"),
        ("promptprefix.spec.content.inline", "Appended to the system text after a blank line"),
        ("promptprefix.spec.replicas", "a number or All"),
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
    assert header.split() == ["NAME", "READY", "WARM", "TOKENS", "AGE"]
    assert row.split()[:4] == ["support-triage", "True", "2/2", "1888"]
    wide, row = server.kubectl("get", *name, "-o", "wide").splitlines()
    assert wide.split() == ["NAME", "READY", "WARM", "TOKENS", "FINGERPRINT", "AGE"]
    assert "pp1:sha256:00" in row
    listed = server.kubectl("get", "-n", "ml", "promptprefix", "-o", "name")
    assert listed.split() == ["promptprefix.promptprefix.dev/support-triage"]
    assert "promptprefixes" in server.kubectl("api-resources", "--categories=promptprefix")
