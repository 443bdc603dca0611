"""Where a request leaves a declared prefix, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix.canonical import canonical_text
from promptprefix.lint.random_id import looks_random
from promptprefix.lint.timestamp import dated_within
from promptprefix.near_miss import FIXES, Divergence, near_miss, other_salt, shared_head
from promptprefix.payload import Payload
from promptprefix.request import ImmutablePart

RULES = " ".join(f"Rule {n}: answer in one word." for n in range(20))
SYSTEM = f"Caf\u00e9 desk. Opened 2026-11-29 by\nAnn, ticket 7f3a9c21d0. {RULES}"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Finds a part.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "n": 1},
    },
}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
PAYLOAD = Payload(
    systemInstructions=SYSTEM,
    toolDefinitions=json.dumps([TOOL, OTHER]),
    defaultModeSpecs="Night shift.",
    chatTemplateOptions='{"thinking": true}',
)
ASKED = ImmutablePart("m", PAYLOAD.system, PAYLOAD.tools, PAYLOAD.options)


def changed(**function: Any) -> list[Any]:
    return [{**TOOL, "function": {**TOOL["function"], **function}}, OTHER]


def swapped(old: str, new: str) -> str:
    assert PAYLOAD.system.count(old) == 1
    return PAYLOAD.system.replace(old, new)


PARAMETERS = TOOL["function"]["parameters"]
REORDERED = {"n": 1, "properties": PARAMETERS["properties"], "type": "object"}
DAY = SYSTEM.index("29 by") + 1
TICKET = SYSTEM.index("7f3a")
ONES: list[tuple[dict[str, Any], Divergence, str, int | None]] = [
    ({"model": "n"}, Divergence.MODEL, "model", 0),
    ({"options": {}}, Divergence.OPTIONS, "chatTemplateOptions", 0),
    ({"system": swapped("11-29", "11-28")}, Divergence.TIMESTAMP, "systemInstructions", DAY),
    ({"system": swapped("7f3a9c21d0", "8e22b1f90c")}, Divergence.RANDOM_ID,
     "systemInstructions", TICKET),
    ({"system": swapped("Rule 7:", "Today is May 3, 2026. Rule 7:")}, Divergence.TIMESTAMP,
     "systemInstructions", SYSTEM.index("Rule 7")),
    ({"system": swapped("Rule 7:", "Session aB3xZ9qLm2. Rule 7:")}, Divergence.RANDOM_ID,
     "systemInstructions", SYSTEM.index("Rule 7")),
    ({"system": swapped("Rule 7: answer", "On 2026-11-30 we rewrote all of this, as " * 4)},
     Divergence.EDITED, "systemInstructions", None),
    ({"system": swapped("by\nAnn", "by Ann")}, Divergence.WHITE_SPACE,
     "systemInstructions", SYSTEM.index("\n")),
    ({"system": swapped("Rule 7: ", "Rule 7:  ")}, Divergence.WHITE_SPACE,
     "systemInstructions", None),
    ({"system": swapped("\nAnn", "\r\nAnn")}, Divergence.LINE_ENDS,
     "systemInstructions", SYSTEM.index("\n")),
    ({"system": swapped("Caf\u00e9", "Cafe\u0301")}, Divergence.UNICODE_FORM,
     "systemInstructions", 3),
    ({"system": swapped("Rule 7: answer", "Rule 7: reply")}, Divergence.EDITED,
     "systemInstructions", None),
    ({"system": swapped("Night", "Late night")}, Divergence.EDITED, "defaultModeSpecs", 0),
    ({"system": f"{PAYLOAD.system} Bob asks."}, Divergence.TAIL, "defaultModeSpecs", 12),
    ({"system": SYSTEM[:200]}, Divergence.CUT_SHORT, "systemInstructions", 200),
    ({"tools": [OTHER, TOOL]}, Divergence.TOOL_ORDER, "toolDefinitions[0]", 0),
    ({"tools": [TOOL]}, Divergence.TOOLS, "toolDefinitions[1]", 0),
    ({"tools": [TOOL, OTHER, OTHER]}, Divergence.TOOLS, "toolDefinitions[2]", 0),
    ({"tools": changed(description="Finds another part.")}, Divergence.TOOLS,
     "toolDefinitions[0]", None),
    ({"tools": changed(description="Finds a  part.")}, Divergence.WHITE_SPACE,
     "toolDefinitions[0]", None),
    ({"tools": changed(parameters=REORDERED)}, Divergence.KEY_ORDER, "toolDefinitions[0]", None),
    ({"tools": changed(parameters={**PARAMETERS, "n": 1.0})}, Divergence.NUMBER_FORM,
     "toolDefinitions[0]", None),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "cause", "field", "offset"), ONES)
def test_the_table(
    changes: dict[str, Any], cause: Divergence, field: str, offset: int | None
) -> None:
    found = near_miss(replace(ASKED, **changes), "m", PAYLOAD, 1_000)
    assert found is not None
    assert (found.cause, found.field) == (cause, field)
    if offset is not None:
        assert found.offset == offset
    assert 0 <= found.tokens_lost <= 1_000
    assert found.fix


@pytest.mark.parametrize(
    "tools",
    [
        [dict(reversed(TOOL.items())), OTHER],
        changed(name=TOOL["function"]["name"]),
        [{"function": dict(reversed(TOOL["function"].items())), "type": "function"}, OTHER],
    ],
)
def test_what_the_engine_prints_alike_is_no_miss(tools: list[Any]) -> None:
    assert near_miss(replace(ASKED, tools=tools), "m", PAYLOAD, 0) is None


def test_the_earlier_the_dearer() -> None:
    lost = []
    for word in ("Caf\u00e9", "Rule 3:", "Rule 17:", "shift"):
        found = near_miss(replace(ASKED, system=swapped(word, "Zz")), "m", PAYLOAD, 1_000)
        assert found is not None
        lost.append(found.tokens_lost)
    tools = near_miss(replace(ASKED, tools=[TOOL]), "m", PAYLOAD, 1_000)
    assert tools is not None
    assert [1_000, *sorted(lost[1:], reverse=True)] == lost
    assert lost[-1] > tools.tokens_lost > 0
    assert other_salt(PAYLOAD, 0).tokens_lost == PAYLOAD.estimated_tokens


def test_tools_in_another_unicode_form_or_with_other_line_ends() -> None:
    for declared, sent, cause in (
        ("Caf\u00e9", "Cafe\u0301", Divergence.UNICODE_FORM),
        ("a\nb", "a\r\nb", Divergence.LINE_ENDS),
    ):
        payload = PAYLOAD.model_copy(
            update={"toolDefinitions": json.dumps(changed(description=declared))}
        )
        payload = Payload(**payload.model_dump())
        found = near_miss(replace(ASKED, tools=changed(description=sent)), "m", payload, 9)
        assert found is not None
        assert found.cause is cause


def test_each_cause_has_a_fix_in_one_line() -> None:
    assert FIXES.keys() == set(Divergence)
    assert not any("\n" in fix for fix in FIXES.values())


@pytest.mark.parametrize(
    ("text", "at", "dated"),
    [
        ("It is 2026-11-30T10:15:42.123Z now", "42", True),
        ("It is 2026-11-30 10:15 now", "30", True),
        ("Today is Monday, November 30", "Monday", True),
        ("at 9:41 PM sharp", "PM", True),
        ("id 1764500000 ok", "00 ok", True),
        ("Version 1.2.3 is out", "2.3", False),
        ("It is 2026-11-30, and more", "more", False),
    ],
)
def test_a_date_that_covers_a_place(text: str, at: str, dated: bool) -> None:
    assert dated_within(text, text.index(at), text.index(at) + 1) is dated


@pytest.mark.parametrize(
    ("word", "random"),
    [
        ("550e8400-e29b-41d4-a716-446655440000", True),
        ("7f3a9c21d0", True),
        ("req_7f3a9c21d0", True),
        ("12345678", True),
        ("aB3xZ9qLm2", True),
        ("chatcmpl-9Xk2LmPq", True),
        ("decade", False),
        ("customer", False),
        ("covid-19", False),
        ("2026", False),
        ("rule-7", False),
    ],
)
def test_what_looks_random(word: str, random: bool) -> None:
    assert looks_random(word) is random


TEXT = st.text(st.sampled_from("ab \n\r\u00e9\u0301e1:-"), max_size=40)


@settings(max_examples=200)
@given(TEXT, TEXT)
def test_a_place_is_where_the_texts_part(one: str, other: str) -> None:
    at = shared_head(one, other)
    assert one[:at] == other[:at]
    assert at == min(len(one), len(other)) or one[at] != other[at]
    found = near_miss(ImmutablePart("m", other, [], {}), "m", Payload(systemInstructions=one), 100)
    assert (found is None) == (one == other)
    if found is not None and canonical_text(one) != canonical_text(other):
        assert found.offset == shared_head(canonical_text(one), canonical_text(other))
