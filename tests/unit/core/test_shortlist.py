"""Lists in sentences."""

from __future__ import annotations

import pytest

from promptprefix.shortlist import shortlist


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a, b"),
        ("abc", "a, b and 1 more"),
        ("abcde", "a, b and 3 more"),
    ],
)
def test_a_few_are_named_and_the_others_counted(names: str, told: str) -> None:
    assert shortlist(list(names[:2]), len(names)) == told
