"""The served schema against our own: what is missing, what is waited for, what is told."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from promptprefix.crd import root_schema
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.backoff import Backoff
from promptprefix_operator.crd_check import (
    OPENAPI_PATH,
    CrdTooOldError,
    check_crd,
    is_served,
    missing_fields,
)

OURS = [{"group": "promptprefix.dev", "kind": "PromptPrefix", "version": "v1alpha1"}]


def document(schema: dict[str, Any]) -> dict[str, Any]:
    named = {"dev.promptprefix.v1alpha1.PromptPrefix": schema}
    return {"components": {"schemas": {"other": {"type": "object"}, **named}}}


def served() -> dict[str, Any]:
    return {**copy.deepcopy(root_schema()), "x-kubernetes-group-version-kind": OURS}


class Api:
    """Answers from a script; errors are raised."""

    def __init__(self, *answers: Mapping[str, Any] | ApiError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def get(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next", lambda _: 0.0)


def test_our_own_schema_lacks_nothing() -> None:
    assert missing_fields(root_schema(), served()) == []


def test_missing_fields_and_values_are_named_by_their_paths() -> None:
    old = served()
    spec, status = old["properties"]["spec"]["properties"], old["properties"]["status"]
    del spec["content"]["properties"]["secretRef"]
    spec["pinning"]["enum"].remove("Hard")
    del status["properties"]["lint"]["items"]["properties"]["tokensLost"]
    assert missing_fields(root_schema(), old) == [
        "spec.content.secretRef",
        "spec.pinning=Hard",
        "status.lint[].tokensLost",
    ]


def test_fields_of_a_newer_one_and_open_schemas_do_no_harm() -> None:
    newer = served()
    newer["properties"]["spec"]["properties"]["future"] = {"type": "array"}
    newer["properties"]["status"] = {"x-kubernetes-preserve-unknown-fields": True}
    assert missing_fields(root_schema(), newer) == []


async def test_a_missing_crd_is_waited_for() -> None:
    api = Api(ApiError(404, "no"), ApiError(0, "unreachable"), document({}), document(served()))
    await check_crd(api)  # type: ignore[arg-type]
    assert api.asked == [OPENAPI_PATH] * 4


async def test_an_old_crd_is_refused_with_the_remedy() -> None:
    old = served()
    del old["properties"]["spec"]["properties"]["content"]["properties"]["secretRef"]
    with pytest.raises(CrdTooOldError) as caught:
        await check_crd(Api(document(old)))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "promptprefixes.promptprefix.dev" in message
    assert "lacks spec.content.secretRef: install" in message
    assert "crds.enabled" in message


async def test_a_very_old_crd_does_not_fill_the_log() -> None:
    empty = {"properties": {"spec": {}, "status": {}}, "x-kubernetes-group-version-kind": OURS}
    with pytest.raises(CrdTooOldError, match=r"and \d+ more"):
        await check_crd(Api(document(empty)))  # type: ignore[arg-type]


async def test_without_the_right_to_read_schemas_the_operator_starts() -> None:
    api = Api(ApiError(403, "no"))
    await check_crd(api)  # type: ignore[arg-type]
    assert len(api.asked) == 1


GROUPS = {"groups": [{"name": "apps"}, {"name": "promptprefix.dev"}]}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (({"groups": [{"name": "apps"}]},), False),
        ((GROUPS, {"resources": [{"name": "promptprefixes"}]}), True),
        ((GROUPS, {"resources": [{"name": "others"}]}), False),
        ((GROUPS, ApiError(404, "no")), False),
    ],
)
async def test_discovery(answers: tuple[Mapping[str, Any] | ApiError, ...], expected: bool) -> None:
    assert await is_served(Api(*answers)) is expected  # type: ignore[arg-type]
