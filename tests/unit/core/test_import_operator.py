"""The folder ``operator/`` must not hide the standard library's module of that name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHECK = "import operator; assert operator.itemgetter; print(operator.__file__)"


def output(*arguments: str, cwd: Path = ROOT, stdin: str = "") -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["-c", CHECK], ""),
        (["-"], CHECK),
        (["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {CHECK}"], ""),
        (["-c", f"import sys; sys.path.insert(0, ''); {CHECK}"], ""),
        (["-c", f"import promptprefix_operator; {CHECK}"], ""),
    ],
)
def test_import_operator(arguments: list[str], stdin: str) -> None:
    assert Path(output(*arguments, stdin=stdin)).name == "operator.py"


def test_import_operator_in_a_module_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{CHECK}\n")
    assert Path(output(str(tmp_path / "main.py"))).name == "operator.py"


@pytest.mark.parametrize("folder", ["core", "operator", "sidecar", "engine", "router", "cli"])
def test_component_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
