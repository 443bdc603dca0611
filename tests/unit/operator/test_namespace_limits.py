"""What namespaces may use, as the settings say it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from promptprefix.fleet import Limits
from promptprefix_operator.manifests import explain
from promptprefix_operator.settings import Settings


def read(monkeypatch: pytest.MonkeyPatch, limits: str) -> Settings:
    monkeypatch.setenv("PROMPTPREFIX_NAMESPACES", "ml,chat,web")
    monkeypatch.setenv("PROMPTPREFIX_OWN_NAMESPACE", "system")
    monkeypatch.setenv("PROMPTPREFIX_LIMITS", limits)
    return Settings()


@pytest.mark.parametrize("nothing", ["", " ", "{}"])
def test_without_limits_a_namespace_has_all(nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, nothing).namespace_limits == {}


def test_a_namespace_has_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, '{"ml": {"budgetShare": 0.5, "maxPriority": 100}}')

    assert found.namespace_limits == {"ml": Limits(0.5, 100)}


def test_what_holds_for_all_is_overruled_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    given = '{"*": {"budgetShare": 0.25, "maxPriority": 10}, "ml": {"maxPriority": 50}, "web": {}}'

    found = read(monkeypatch, given).namespace_limits

    assert found == {"ml": Limits(0.25, 50), "chat": Limits(0.25, 10), "web": Limits(0.25, 10)}


def test_a_share_of_nothing_and_all_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, '{"ml": {"budgetShare": 0}, "web": {"budgetShare": 1}}')

    assert [each.budget_share for each in found.namespace_limits.values()] == [0, 1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("half", "limits: Value error, is not JSON"),
        ("[]", "limits: Input should be a valid dictionary"),
        ('{"ml": 1}', "limits.ml"),
        ('{"ml": {"budgetShare": 1.5}}', "limits.ml.budgetShare: Input should be less than"),
        ('{"ml": {"budgetShare": -0.1}}', "limits.ml.budgetShare"),
        ('{"ml": {"budgetShare": "50%"}}', "limits.ml.budgetShare: Input should be a valid number"),
        ('{"ml": {"maxPriority": 1001}}', "limits.ml.maxPriority"),
        ('{"ml": {"maxPriority": 1.5}}', "limits.ml.maxPriority"),
        ('{"ml": {"share": 0.5}}', "limits.ml.share: Extra inputs are not permitted"),
        ('{"mI": {"budgetShare": 0.5}}', "limits: mI: not among the namespaces"),
    ],
)
def test_what_can_not_be_is_told_by_field(
    given: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError) as refused:
        read(monkeypatch, given)

    assert told in explain(refused.value, "")
