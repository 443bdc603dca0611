"""The quick serialisation writes the bytes of RFC 8785."""

from __future__ import annotations

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptprefix.canonical import JsonValue
from promptprefix.jcs import jcs

from .json_values import JSON

CHARACTERS = st.characters(exclude_categories=["Cs"])


@settings(max_examples=60, deadline=None)
@given(value=JSON | st.dictionaries(st.text(CHARACTERS, max_size=3), st.text(CHARACTERS)))
@example({"\ue000": 1, "\U0001f642": 2, "": [True, False, None]})
@example("".join(map(chr, range(0x100))) + "\u2028\u2029\ufffe\U0001f642</script>")
@example([2**53 - 1, -(2**53) + 1, 0, 1.0, 1e21, -0.0, 5e-324])
def test_both_serialisations_agree(value: JsonValue) -> None:
    assert jcs(value) == rfc8785.dumps(value)


def test_what_jcs_can_not_hold_is_refused() -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        jcs([2**53])
