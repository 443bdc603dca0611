"""What the commands print: text for people, JSON or YAML for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import yaml

from promptprefix.lint import RULES
from promptprefix.resource import LintFinding, LintPolicy
from promptprefix_cli.declared import Declared


class Output(StrEnum):
    """Values of ``--output``."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def fingerprint_report(prefixes: Sequence[Declared], output: Output) -> str:
    """Return the fingerprints."""
    if output is Output.TEXT:
        return "".join(f"{p.fingerprint}  {p.document}, model {p.model}\n" for p in prefixes)
    rows = [
        {"document": p.document, "model": p.model, "fingerprint": p.fingerprint} for p in prefixes
    ]
    return data_report(rows, output)


def lint_report(results: Sequence[tuple[Declared, Sequence[LintFinding]]], output: Output) -> str:
    """Return the findings of each prefix."""
    if output is Output.TEXT:
        return "".join(line for prefix, found in results for line in _lines(prefix, found))
    rows = [
        {
            "document": prefix.document,
            "findings": [finding.model_dump() for finding in found],
            "windows": [{"path": path, "message": why} for path, why in prefix.window_errors()],
        }
        for prefix, found in results
    ]
    return data_report(rows, output)


def _lines(prefix: Declared, findings: Sequence[LintFinding]) -> Iterator[str]:
    for path, problem in prefix.window_errors():
        yield f"{prefix.document}: {path}: {problem}\n"
    if prefix.lint.policy is LintPolicy.OFF:
        yield f"{prefix.document}: not linted, spec.lint.policy is Off\n"
    elif not findings:
        yield f"{prefix.document}: no findings ({len(RULES)} rules)\n"
    for finding in findings:
        before = prefix.text_at(finding.path)[: finding.offset]
        line, column = before.count("\n") + 1, finding.offset - before.rfind("\n")
        yield (
            f"{prefix.document}: {finding.path}, line {line}, column {column}: "
            f"{finding.severity} {finding.rule}: {finding.message}\n"
        )


def data_report(rows: Sequence[Any] | Mapping[str, Any], output: Output) -> str:
    """Return the rows as JSON or YAML."""
    if output is Output.JSON:
        return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    return yaml.safe_dump(rows, sort_keys=False, allow_unicode=True)
