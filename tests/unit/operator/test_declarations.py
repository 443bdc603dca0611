"""From readings to prefixes: texts, refusals and lint policy."""

from __future__ import annotations

import base64
import gc
from types import FunctionType, ModuleType
from typing import Any

import pytest

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.fleet import Prefix, placement_id
from promptprefix.payload import Payload
from promptprefix.reasons import Reason
from promptprefix.resource import LintFinding
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.salts import Salts
from promptprefix_operator.sources import Source, SourceKind, absent, forbidden, text_in
from tests.unit.operator.declared import Linter, edit, later, read, resource, texts

SECRET = "a text that must not be told"
TEXTS = Source(SourceKind.CONFIG_MAP, "ml", "texts")
HIDDEN = Source(SourceKind.SECRET, "ml", "texts")
LONE_SURROGATE = (
    '[{"type": "function", "function": {"name": "\\ud800", "description": "' + SECRET + '"}}]'
)
FINDING = LintFinding(
    rule="clock", severity="Warning", path="systemInstructions", offset=0, message="m"
)


def holds(root: object, text: str) -> bool:
    """Whether ``text`` is part of a string that ``root`` keeps alive, but for code."""
    seen: set[int] = set()
    rest = [root]
    while rest:
        each = rest.pop()
        if id(each) in seen or isinstance(each, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(each))
        if isinstance(each, str) and text in each:
            return True
        rest += gc.get_referents(each)
    return False


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(lambda: None)


@pytest.fixture
def declarations() -> Declarations:
    return Declarations(Linter(), Salts())


def test_an_inline_text_is_a_version(declarations: Declarations, cluster: Cluster) -> None:
    prefix = read(declarations, cluster, resource())
    payload = Payload(systemInstructions="one")
    assert prefix.version is not None
    assert prefix.version.id == placement_id("u-1", "m", payload.digest)
    assert prefix.version.fingerprint == payload_fingerprint("m", payload)
    assert (prefix.generation, prefix.refusal, prefix.earlier) == (3, None, ())
    assert declarations.payload(payload.digest) == payload


@pytest.mark.parametrize(
    ("body", "reason", "word"),
    [
        (resource(spec_extra=1), Reason.INVALID_SPEC, "spec.spec_extra"),
        (resource(replicas=0), Reason.INVALID_SPEC, "replicas"),
        (
            resource({"inline": {"systemInstructions": 7, "other": SECRET}}),
            Reason.INVALID_SPEC,
            "other",
        ),
        (resource({"inline": {"toolDefinitions": "[{]"}}), Reason.INVALID_TOOLS, "toolDefinitions"),
        (
            resource({"inline": {"systemInstructions": "x", "chatTemplateOptions": "[]"}}),
            Reason.INVALID_CONTENT,
            "chatTemplateOptions",
        ),
        (resource({"inline": {"toolDefinitions": " [ ]"}}), Reason.INVALID_CONTENT, "neither"),
        (
            resource({"inline": {"systemInstructions": f"{SECRET} \ud800"}}),
            Reason.INVALID_SPEC,
            "systemInstructions",
        ),
        (
            resource({"inline": {"toolDefinitions": LONE_SURROGATE}}),
            Reason.INVALID_TOOLS,
            "toolDefinitions",
        ),
    ],
)
def test_what_can_not_work_is_refused_with_its_field_and_without_its_text(
    declarations: Declarations, cluster: Cluster, body: dict[str, Any], reason: Reason, word: str
) -> None:
    refusal = read(declarations, cluster, body).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.stalled) == (reason, True)
    assert word in refusal.message
    assert SECRET not in refusal.message


def test_a_config_map_is_awaited_read_missed_and_read_again(
    declarations: Declarations, cluster: Cluster
) -> None:
    prefix = read(declarations, cluster, resource({"configMapRef": {"name": "texts"}}))
    assert prefix.refusal is not None
    assert prefix.refusal.reason is Reason.RECONCILING
    assert cluster.missing == {TEXTS}

    def seen(body: dict[str, Any] | None) -> Prefix:
        cluster.see_text(TEXTS, absent(TEXTS) if body is None else text_in(TEXTS, body))
        return declarations.prefixes(cluster, later())[0]

    missing = seen(None).refusal
    assert missing is not None
    assert (missing.reason, missing.stalled) == (Reason.CONTENT_NOT_FOUND, False)
    without = seen({"metadata": {}, "data": {"systemInstruction": SECRET}}).refusal
    assert without is not None
    assert without.reason is Reason.INVALID_CONTENT
    assert "systemInstructions" in without.message
    assert SECRET not in without.message
    unreadable = seen(texts(f"{SECRET} \ud800")).refusal
    assert unreadable is not None
    assert unreadable.reason is Reason.INVALID_CONTENT
    assert SECRET not in unreadable.message
    found = seen(texts("two", version=5))
    assert found.refusal is None
    assert declarations.payload(Payload(systemInstructions="two").digest) is not None
    assert seen(texts("one", version=4)) == found, "an older reading"


def test_config_maps_that_nobody_refers_to_are_not_kept(cluster: Cluster) -> None:
    cluster.see_text(TEXTS, text_in(TEXTS, texts(SECRET)))
    assert not holds(cluster, SECRET)
    cluster.see_resource(resource({"configMapRef": {"name": "texts"}}))
    cluster.see_text(TEXTS, text_in(TEXTS, texts(SECRET)))
    assert holds(cluster, SECRET)
    cluster.see_resource(resource(version=2))
    assert not holds(cluster, SECRET)


def encoded(**data: str) -> dict[str, Any]:
    values = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"metadata": {"resourceVersion": "1"}, "data": values}


def test_a_secret_is_read_refused_and_missed_without_tearing_what_is_warm(
    declarations: Declarations, cluster: Cluster
) -> None:
    prefix = read(declarations, cluster, resource({"secretRef": {"name": "texts"}}))
    assert prefix.refusal is not None
    assert prefix.refusal.reason is Reason.RECONCILING
    assert cluster.missing == {HIDDEN}
    cluster.see_text(HIDDEN, text_in(HIDDEN, encoded(systemInstructions="one", password="x")))
    [found] = declarations.prefixes(cluster, later())
    assert found.version is not None
    assert declarations.payload(found.version.content_digest) == Payload(systemInstructions="one")
    for text, reason, word in (
        (forbidden(HIDDEN), Reason.CONTENT_FORBIDDEN, "chart's value contentSecrets"),
        (absent(HIDDEN), Reason.CONTENT_NOT_FOUND, "spec.content.secretRef.name"),
    ):
        cluster.see_text(HIDDEN, text)
        [prefix] = declarations.prefixes(cluster, later())
        assert prefix.refusal is not None
        assert (prefix.refusal.reason, prefix.refusal.stalled) == (reason, False)
        assert prefix.refusal.message.startswith("Secret texts in namespace ml: ")
        assert word in prefix.refusal.message
        assert prefix.earlier == (found.version,)


@pytest.mark.parametrize("source", ["inline", "configMapRef", "secretRef"])
@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("toolDefinitions", f'[{{"{SECRET[:20]}": 1, "{SECRET[:20]}": 2}}]', "InvalidTools"),
        ("toolDefinitions", f'[{{"{SECRET[:20]}": {2**60}}}]', "InvalidTools"),
        ("toolDefinitions", f"[{SECRET}", "InvalidTools"),
        ("chatTemplateOptions", f'{{"{SECRET[:20]}": {2**60}}}', "InvalidContent"),
    ],
)
def test_what_is_wrong_with_a_text_is_told_without_any_of_it(
    declarations: Declarations, cluster: Cluster, source: str, field: str, text: str, reason: str
) -> None:
    data = {"systemInstructions": "x", field: text}
    cluster.see_resource(resource({source: data if source == "inline" else {"name": "texts"}}))
    cluster.see_text(HIDDEN, text_in(HIDDEN, encoded(**data)))
    cluster.see_text(TEXTS, text_in(TEXTS, {"metadata": {"resourceVersion": "1"}, "data": data}))
    [prefix] = declarations.prefixes(cluster, later())
    assert prefix.refusal is not None
    assert (prefix.refusal.reason, prefix.refusal.stalled) == (reason, True)
    assert field in prefix.refusal.message
    assert SECRET[:20] not in prefix.refusal.message


def test_keys_of_a_secret_that_are_no_text_are_named() -> None:
    text = text_in(HIDDEN, {"metadata": {}, "data": {"toolDefinitions": "%"}})
    assert (text.reason, text.error) == (
        Reason.INVALID_CONTENT,
        "toolDefinitions: is not base64.",
    )
    none = text_in(HIDDEN, {"metadata": {}, "data": {"password": "%"}})
    assert "none of the keys systemInstructions" in none.error


def test_a_broken_edit_keeps_the_version_before_it(
    declarations: Declarations, cluster: Cluster
) -> None:
    first = read(declarations, cluster, edit("one", 1)).version
    broken = read(declarations, cluster, resource({"inline": {"toolDefinitions": "[{]"}}, 2))
    assert (broken.version, broken.earlier) == (None, (first,))


def test_gone_resources_leave_nothing(declarations: Declarations, cluster: Cluster) -> None:
    read(declarations, cluster, edit(SECRET, 1))
    cluster.forget_resource("u-1")
    declarations.prune(cluster.resources, (), later())
    assert declarations.prefixes(cluster, later()) == ()
    assert not holds(declarations, SECRET)
    assert not holds(cluster, SECRET)


@pytest.mark.parametrize(
    ("lint", "refused", "reported"),
    [
        ({"policy": "Warn"}, False, True),
        ({"policy": "Enforce"}, True, True),
        ({"policy": "Enforce", "ignore": ["clock"]}, False, False),
        ({"policy": "Off"}, False, False),
    ],
)
def test_lint_policies(
    cluster: Cluster, lint: dict[str, Any], refused: bool, reported: bool
) -> None:
    linter = Linter(FINDING)
    declarations = Declarations(linter, Salts())
    prefix = read(declarations, cluster, resource(lint=lint))
    assert (prefix.refusal is not None) == refused
    if prefix.refusal is not None:
        assert (prefix.refusal.reason, prefix.refusal.stalled) == (Reason.LINT_FAILED, True)
        assert "clock" in prefix.refusal.message
    assert prefix.lint == ((FINDING,) if reported else ())
    declarations.prefixes(cluster, later())
    assert linter.calls == (0 if lint["policy"] == "Off" else 1), "findings are remembered"


def test_an_older_reading_does_not_replace_a_newer_one(cluster: Cluster) -> None:
    cluster.see_resource(resource(version=5, model="new"))
    cluster.see_resource(resource(version=4, model="old"))
    spec = cluster.resources["u-1"].spec
    assert spec is not None
    assert spec.model == "new"
