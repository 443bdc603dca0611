"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from promptprefix.canonical import MAX_DEPTH
from promptprefix.lint import MAX_PER_RULE, RULES
from promptprefix.lint.length import MIN_TOKENS
from promptprefix.resource import MAX_LINT

DOCS = Path(__file__).parents[3] / "docs"


def test_the_table_of_rules_is_complete() -> None:
    text = (DOCS / "lint.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(RULES)
    assert f"fewer than {MIN_TOKENS} tokens" in text
    assert f"at\nmost {MAX_PER_RULE} findings of a rule and {MAX_LINT} in all" in text


def test_limits_of_the_canonical_form() -> None:
    assert f"nesting deeper than {MAX_DEPTH} levels" in (DOCS / "fingerprint.md").read_text()
