"""A chart's values with the comments above them: what its README has to say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.charts.render import CHARTS

HEAD = "| value | default | meaning |\n|---|---|---|\n"


@dataclass(frozen=True)
class DocumentedValue:
    """path: dotted, from the root. default: as in values.yaml."""

    path: str
    default: Any
    meaning: str

    @property
    def row(self) -> str:
        """The value as a row of the README's table."""
        default = json.dumps(self.default, ensure_ascii=False)
        meaning = self.meaning.replace("|", "\\|")
        return f"| `{self.path}` | `{default}` | {meaning} |\n"


def documented_values(chart: str) -> list[DocumentedValue]:
    """Return the values of ``charts/<chart>`` in their order.

    A key with a comment directly above it is a value, mappings included; one without a comment must
    be a mapping of values. Raises `ValueError` for a value without a comment.
    """
    text = (CHARTS / chart / "values.yaml").read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values_of(root, yaml.safe_load(text), text.splitlines(), ""))


def table(chart: str) -> str:
    """Return the README's table."""
    return HEAD + "".join(value.row for value in documented_values(chart))


def _values_of(
    node: yaml.MappingNode, defaults: dict[str, Any], lines: list[str], parent: str
) -> Iterator[DocumentedValue]:
    for key, child in node.value:
        path, default = f"{parent}{key.value}", defaults[key.value]
        if meaning := _comment_above(lines, key.start_mark.line):
            yield DocumentedValue(path, default, meaning)
        elif isinstance(child, yaml.MappingNode) and child.value:
            yield from _values_of(child, default, lines, f"{path}.")
        else:
            raise ValueError(f"{path} has no comment")


def _comment_above(lines: list[str], line: int) -> str:
    comment: list[str] = []
    while line and (text := lines[line - 1].strip()).startswith("#"):
        comment.insert(0, text.lstrip("# "))
        line -= 1
    return " ".join(comment)


def _main(chart: str) -> None:
    """Write the table into the chart's README, in the place of the one that is there."""
    readme = Path(CHARTS / chart / "README.md")
    before, _, rest = readme.read_text().partition(HEAD)
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else "\n"
    readme.write_text(f"{before}{table(chart).rstrip()}{after}")


if __name__ == "__main__":
    _main(sys.argv[1])
