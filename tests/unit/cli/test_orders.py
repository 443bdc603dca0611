"""Orders of a person on call, given through a kubectl that is played."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from promptprefix.annotations import UNPIN, WARM_NOW
from promptprefix_cli.main import app
from promptprefix_cli.orders import Order, OrderError, order_of

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
KUBECTL = """#!/bin/sh
printf '%s\\n' "$@" --- >>"$CALLS"
case "$3" in refused) echo "Error from server (Forbidden): no" >&2; exit 1;; esac
echo patched
"""


@pytest.mark.parametrize(
    ("lasting", "off", "value"),
    [
        (None, False, "true"),
        ("2h", False, "2026-11-30T14:00:00Z"),
        ("1h30m", False, "2026-11-30T13:30:00Z"),
        (None, True, None),
    ],
)
def test_an_order(lasting: str | None, off: bool, value: str | None) -> None:
    assert order_of(WARM_NOW, lasting, off, NOON) == Order(WARM_NOW, value)


def test_an_order_ends_in_universal_time() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert order_of(UNPIN, "2h", False, there).value == "2026-11-30T14:00:00Z"


@pytest.mark.parametrize(
    ("lasting", "off", "told"),
    [
        ("0s", False, "--for: must be longer than 0s"),
        ("2 hours", False, "--for: must be a duration"),
        ("", False, "--for: must be a duration"),
        ("999999h", False, "out of range"),
        ("1h", True, "exclude each other"),
    ],
)
def test_an_order_that_can_not_be_given(lasting: str, off: bool, told: str) -> None:
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    with pytest.raises(OrderError, match=told):
        order_of(WARM_NOW, lasting, off, late)


@pytest.mark.parametrize(
    ("order", "annotations"),
    [
        (Order(WARM_NOW, "true"), {WARM_NOW: "true", UNPIN: None}),
        (Order(UNPIN, "true"), {UNPIN: "true", WARM_NOW: None}),
        (Order(UNPIN, None), {UNPIN: None}),
    ],
)
def test_an_order_takes_the_opposite_one_away(order: Order, annotations: dict[str, Any]) -> None:
    assert json.loads(order.patch) == {"metadata": {"annotations": annotations}}


class Cluster:
    """A kubectl in the PATH that notes how it was called."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._calls = folder / "calls"
        program = folder / "kubectl"
        program.write_text(KUBECTL)
        program.chmod(0o755)
        patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        patch.setenv("CALLS", str(self._calls))

    @property
    def calls(self) -> list[list[str]]:
        text = self._calls.read_text() if self._calls.exists() else ""
        return [each.splitlines() for each in text.split("---\n") if each]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_kubectl_patches_each_prefix(cluster: Cluster) -> None:
    status, out, err = run("warm", "a", "b", "-n", "ml", "--context", "prod")
    assert (status, err) == (0, "")
    assert out == "a: held warm until it is taken back\nb: held warm until it is taken back\n"
    patch = json.dumps({"metadata": {"annotations": {WARM_NOW: "true", UNPIN: None}}})
    assert cluster.calls == [
        [
            "patch",
            "promptprefixes.promptprefix.dev",
            name,
            "--type=merge",
            f"--patch={patch}",
            "--field-manager=promptprefix-cli",
            "--namespace=ml",
            "--context=prod",
        ]
        for name in ("a", "b")
    ]


def test_without_a_namespace_kubectl_chooses(cluster: Cluster) -> None:
    status, out, _ = run("unpin", "a", "--for", "2h")
    assert (status, out[:17]) == (0, "a: unpinned until")
    assert not any(each.startswith("--namespace") for each in cluster.calls[0])


def test_an_order_is_taken_back(cluster: Cluster) -> None:
    assert run("unpin", "a", "--off") == (0, "a: no longer unpinned by order\n", "")
    assert f'--patch={{"metadata": {{"annotations": {{"{UNPIN}": null}}}}}}' in cluster.calls[0]


def test_what_kubectl_says_is_told(cluster: Cluster) -> None:
    status, out, err = run("warm", "a", "refused", "b")
    assert (status, out) == (2, "a: held warm until it is taken back\n")
    assert err == "error: refused: kubectl: Error from server (Forbidden): no\n"
    assert [each[2] for each in cluster.calls] == ["a", "refused"]


@pytest.mark.parametrize("name", ["--all", "A", "a/b", "", "a b"])
def test_what_is_no_name_reaches_no_cluster(cluster: Cluster, name: str) -> None:
    status, out, err = run("warm", "--", "good", name)
    assert (status, out) == (2, "")
    assert "no name of a PromptPrefix" in err
    assert cluster.calls == []


def test_without_kubectl_nothing_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = run("warm", "a")
    assert (status, err[:38]) == (2, "error: kubectl is not in the PATH: ins")


def test_a_duration_that_is_none_reaches_no_cluster(cluster: Cluster) -> None:
    status, _, err = run("warm", "a", "--for", "soon")
    assert (status, cluster.calls) == (2, [])
    assert "--for: must be a duration" in err
