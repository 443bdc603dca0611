"""How pip reaches its package index on this machine, for the build stages."""

from __future__ import annotations

import ast
import configparser
import io
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENT = ":env:"
PATHS = ("cert", "client-cert", "find-links")


@dataclass(frozen=True)
class PipConfiguration:
    """A configuration file's text, which may hold a password, and the paths that it names."""

    text: str = field(repr=False)
    paths: tuple[Path, ...]

    @classmethod
    def of_this_machine(cls) -> PipConfiguration:
        """Ask pip, which knows its files and the environment."""
        shown = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return cls.parse(shown.splitlines())

    @classmethod
    def parse(cls, lines: Iterable[str]) -> PipConfiguration:
        """Read lines such as ``global.cert='/etc/x.pem'``; those of the environment win."""
        configuration = configparser.RawConfigParser()
        values: list[str] = []
        found = [match for line in lines if (match := re.fullmatch(r"(.+?)\.([^.=]+)=(.*)", line))]
        for match in sorted(found, key=lambda match: match[1] == ENVIRONMENT):
            section = "global" if match[1] == ENVIRONMENT else match[1]
            value = str(ast.literal_eval(match[3]))
            if not configuration.has_section(section):
                configuration.add_section(section)
            configuration.set(section, match[2], value.replace("\n", "\n  "))
            if match[2] in PATHS:
                values += value.split()
        text = io.StringIO()
        configuration.write(text)
        return cls(text.getvalue(), tuple(dict.fromkeys(_existing(values))))


def _existing(values: Iterable[str]) -> Iterable[Path]:
    for value in values:
        path = Path(value.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            yield path
