"""What the build stages take from the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from images import tree

CHECKOUT = Path(__file__).parents[3]


def test_project() -> None:
    project = tree.Project.read(CHECKOUT / "pyproject.toml")
    assert project.name == "promptprefix"
    assert {"operator", "sidecar", "router"} <= project.extras.keys()
    assert any(item.startswith("kopf") for item in project.extras["operator"])


def test_an_unknown_component_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    with pytest.raises(SystemExit):
        tree.main(["component", "engine"])
    assert "'operator'" in capsys.readouterr().err


def test_plugin_is_readable_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(tree, "PLUGIN", tmp_path / "plugin")
    before = os.umask(0o077)
    try:
        assert tree.main(["plugin"]) == 0
    finally:
        os.umask(before)
    paths = list((tmp_path / "plugin").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o755}
    copied = tmp_path / "plugin/usr/share/promptprefix-plugin/promptprefix_vllm"
    sources = CHECKOUT / "engine/promptprefix_vllm"
    assert {path.name for path in copied.iterdir()} == {
        path.name for path in sources.iterdir() if path.is_file()
    }
