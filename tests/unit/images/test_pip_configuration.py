"""The way to the package index, as the build stages get it."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from e2e.images.pip_configuration import PipConfiguration


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], {}),
        (["global.timeout='60'"], {("global", "timeout"): "60"}),
        (
            [":env:.index-url='https://b.example/'", "global.index-url='https://a.example/'"],
            {("global", "index-url"): "https://b.example/"},
        ),
        (
            ["install.find-links='/a\\n/b'", "global.index-url='https://u:p%40w@a.example/'"],
            {
                ("install", "find-links"): "/a\n/b",
                ("global", "index-url"): "https://u:p%40w@a.example/",
            },
        ),
        (["WARNING: something else"], {}),
    ],
)
def test_text(lines: list[str], expected: dict[tuple[str, str], str]) -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(PipConfiguration.parse(lines).text)
    found = {
        (section, name): value
        for section in parser.sections()
        for name, value in parser[section].items()
    }
    assert found == expected


def test_paths_are_those_that_exist_here(tmp_path: Path) -> None:
    certificate, wheels = tmp_path / "ca.pem", tmp_path / "wheels"
    certificate.touch()
    wheels.mkdir()
    links = f"{wheels}\\n{tmp_path}/missing\\nhttps://a.example/"
    lines = [f"global.cert='{certificate}'", f":env:.find-links='{links}'",
             f"global.log='{tmp_path}'"]  # fmt: skip
    assert PipConfiguration.parse(lines).paths == (certificate, wheels)


def test_it_is_not_shown(tmp_path: Path) -> None:
    configuration = PipConfiguration.parse(["global.index-url='https://u:secret@a.example/'"])
    assert "secret" not in repr(configuration)
