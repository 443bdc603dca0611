"""What a restarted sidecar remembers of the engine beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptprefix_sidecar.latch_file import LatchFile
from promptprefix_sidecar.readiness import Readiness

OPEN = Readiness(
    boot="b", epoch="e", healthy_since=1.0, answered_at=2.0, latched=True, failed_open=True
)


def test_an_open_latch_is_remembered_without_its_times(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    LatchFile(path).write(OPEN)
    assert LatchFile(path).read() == Readiness(boot="b", epoch="e", latched=True, failed_open=True)
    assert list(tmp_path.iterdir()) == [path]


def test_a_closed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    LatchFile(path).write(Readiness(boot="b", healthy_since=1.0))
    assert not path.exists()
    assert LatchFile(path).read() == Readiness()


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"boot": 1}', '{"boot": null}'])
def test_a_broken_file_is_no_memory(tmp_path: Path, text: str) -> None:
    path = tmp_path / "latch"
    path.write_text(text)
    assert LatchFile(path).read() == Readiness()


def test_without_a_writable_folder_the_sidecar_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = LatchFile(tmp_path / "nowhere" / "latch")
    file.write(OPEN)
    file.write(OPEN)
    assert capsys.readouterr().out.count("latch not remembered") == 1
    assert file.read() == Readiness()
