"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from promptprefix import demand
from promptprefix.canonical import MAX_DEPTH
from promptprefix.durations import MAX_HOURS
from promptprefix.fleet import Retention
from promptprefix.history import LONGEST_WAIT, QUIET
from promptprefix.lint import MAX_PER_RULE, RULES
from promptprefix.lint.length import MIN_TOKENS
from promptprefix.reasons import Reason
from promptprefix.request import Cause
from promptprefix.resource import MAX_LINT
from promptprefix.versions import EARLIER_KEPT
from promptprefix.windows import HORIZON

DOCS = Path(__file__).parents[3] / "docs"


def test_the_table_of_rules_is_complete() -> None:
    text = (DOCS / "lint.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(RULES)
    assert f"fewer than {MIN_TOKENS} tokens" in text
    assert f"at\nmost {MAX_PER_RULE} findings of a rule and {MAX_LINT} in all" in text


def test_the_table_of_causes_is_complete() -> None:
    text = (DOCS / "fingerprint.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \| (?:has|is) ", text, re.MULTILINE) == list(Cause)


def test_limits_of_the_canonical_form() -> None:
    assert f"nesting deeper than {MAX_DEPTH} levels" in (DOCS / "fingerprint.md").read_text()


def test_numbers_of_the_lifecycle() -> None:
    text = " ".join((DOCS / "lifecycle.md").read_text().split())
    assert f"within {QUIET.seconds} seconds become one version, after at most" in text
    assert f"after at most {LONGEST_WAIT.seconds} seconds" in text
    assert f"at most {EARLIER_KEPT} earlier versions stay" in text
    retention = Retention()
    assert f"match for {retention.idle.total_seconds():.0f} seconds (`VERSION_IDLE" in text
    assert f"than {retention.max_age.total_seconds():.0f} seconds after they were" in text
    assert f"`duration`, at most {MAX_HOURS}h" in text
    assert f"for more than {HORIZON.days} days" in text


def test_the_reasons_of_active_are_those_of_demand() -> None:
    table = re.findall(r"\| (yes|no) \| `(\w+)` \|$", (DOCS / "lifecycle.md").read_text(), re.M)
    assert len(table) == 9
    source = Path(demand.__file__).read_text()
    for held, reason in table:
        name = Reason(reason).name
        assert f"{held == 'yes'}, Reason.{name}" in source or name == "HELD"
