"""The linter: what each rule finds, where, what it costs, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.lint import MAX_PER_RULE, RULES, lint_payload
from promptprefix.payload import Payload
from promptprefix.resource import MAX_LINT, LintFinding
from promptprefix.tokens import estimate_tokens

LONG = "Answer in one sentence and name the shelf on which the part lies. " * 20


def found(rule: str, text: str, field: str = "systemInstructions") -> list[LintFinding]:
    """Return the findings of ``rule`` in a payload with ``text`` in ``field``."""
    findings = lint_payload(Payload.model_validate({field: text}))
    return [finding for finding in findings if finding.rule == rule]


def offsets(rule: str, text: str, field: str = "systemInstructions") -> list[int]:
    return [finding.offset for finding in found(rule, text, field)]


GENERATED = [
    "2026-11-29T14:15:00Z",
    "Session of «2026-11-29 14:15»",
    "Built at «20261129T141500Z»",
    "Sun, 29 Nov 2026 14:15:00 +0000",
    "Sun Nov 29 14:15:00 2026",
    "It is «Sunday, November 29, 2026».",
    "«Sunday 29 November 2026»",
    "Today is «2026-11-29».",
    "Today is «Sunday».",
    "Today's date is «November 29th, 2026».",
    "Current date: «29 Nov 2026»",
    "The current date is «2026/11/29».",
    "The current date is «29/11/2026».",
    "current_date: «2026-11-29»",
    "Date: «2026-11-29»",
    "Date and time: «29.11.2026»",
    "«2026-11-29» is today.",
    "Stock levels as of «2026-11-29».",
    "Generated on «29 November 2026» by the build.",
    "The current time is «14:05».",
    "Unix timestamp: «1764425700»",
    "now=«1764425700123»",
    "Use the ISO format for dates. Today is «2026-11-29».",
    "Today is «29 Nov 2026», two days before 2026-12-01.",
]

FIXED = [
    "Version 2024-01-01 of the rules",
    "This policy is effective 2024-01-01.",
    "Effective date: 2024-01-01",
    "The policy holds since 1 January 2024.",
    "Your knowledge cutoff is June 2024.",
    "Write dates like 2024-01-01.",
    "Timestamps, e.g. 2024-01-01T00:00:00Z, are in UTC.",
    "Use the format 2024-01-01 14:15.",
    "For example, today is 2024-01-01.",
    "The company was founded on 29 November 1998.",
    "Orders placed before 2024-01-01 are closed.",
    "Call the tool if today is Friday.",
    "Our office is open from 09:00 to 17:00 on Monday.",
    "Release 1.2.3, API 2024-11-20, see RFC 3339",
    "Call +1 1764425700 or read ISBN 9783161484100.",
    "2024-01-01",
    "The May 2024 report",
    "Ask for the current date and time.",
    "chapter 12:30 says it now",
]


@pytest.mark.parametrize("text", GENERATED)
def test_generated_dates_are_found(text: str) -> None:
    plain, place = text.replace("«", "").replace("»", ""), max(0, text.find("«"))
    assert offsets("dynamic-timestamp", plain) == [place]


@pytest.mark.parametrize("text", FIXED)
def test_fixed_dates_are_left_alone(text: str) -> None:
    assert offsets("dynamic-timestamp", text) == []


def test_a_date_is_found_in_every_text_and_not_in_the_options() -> None:
    date = "Today is 2026-11-29."
    payload = Payload(
        systemInstructions=date,
        defaultModeSpecs=date,
        toolDefinitions=json.dumps([tool("f", description=date)]),
        chatTemplateOptions=json.dumps({"date_string": date}),
    )
    findings = lint_payload(payload, ignore=["short-prefix"])
    assert [finding.path for finding in findings] == [
        "systemInstructions",
        "defaultModeSpecs",
        "toolDefinitions",
    ]


DIALOGUES = [
    ("User: Where is my order?\nAssistant: On its way.", [0]),
    ("You are a bot.\n\nHuman: Hi\n\nAI: Hello\nHuman: Bye", [16]),
    ("Rules.\n**User:** Hi\n**Assistant:** Hello", [7]),
    ("> user: hi\n> bot: hello", [0]),
    ('[{"role": "user", "content": "a"}, {"role":"assistant", "content": "b"}]', [2]),
    ("Hi <|im_start|>user\nHello<|im_end|>", [3, 25]),
    ("[INST] Hi [/INST]", [0, 10]),
    ("<<SYS>>", [0]),
    ("<|start_header_id|>user<|end_header_id|>", [0, 23]),
    ("<start_of_turn>user", [0]),
    ("<｜User｜>Hi", [0]),
]

NO_DIALOGUES = [
    "User: the person who writes to us.",
    "User: one.\nUser: two.",
    "Assistant: you.",
    "Example:\nUser: Where is my order?\nAssistant: On its way.",
    "Answer as in these samples.\n\nUser: a\nAssistant: b\nUser: c\nAssistant: d",
    "The user: a person. The assistant: a program.",
    f"User: a\n{'x' * 1_001}\nAssistant: b",
    'Send "role": "user" for the customer.',
    "Use <b> and [INSTALL] and a < b | c > d.",
]


@pytest.mark.parametrize(("text", "expected"), DIALOGUES)
def test_conversations_are_found(text: str, expected: list[int]) -> None:
    assert offsets("conversation-in-prefix", text) == expected
    assert offsets("conversation-in-prefix", text, "defaultModeSpecs") == expected


@pytest.mark.parametrize("text", NO_DIALOGUES)
def test_no_conversations(text: str) -> None:
    assert offsets("conversation-in-prefix", text) == []


def test_role_tokens_are_errors() -> None:
    assert found("conversation-in-prefix", "<|im_end|>")[0].severity == "Error"
    assert found("conversation-in-prefix", "User: a\nAI: b")[0].severity == "Warning"


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


TURNED = {"function": {"name": "b"}, "type": "function"}
TURNED_FUNCTION = {"function": {"description": "", "name": "b"}}

UNSTABLE: list[tuple[str, list[Any], str]] = [
    ("keys of tools", [tool("a"), TURNED], '"type": "function"}'),
    (
        "keys of functions",
        [tool("a", description=""), {"type": "function", **TURNED_FUNCTION}],
        '"name": "b"',
    ),
    (
        "keys of schemas",
        [tool("a", parameters=schema(x={"type": "string", "description": ""},
                                     y={"description": "", "type": "string"}))],
        '"type": "string"}}}}}',
    ),
    (
        "keys of nested schemas",
        [tool("a", parameters=schema(x={"type": "", "items": {"properties": {}, "type": ""}}))],
        '"type": ""',
    ),
    ("whole number with a fraction", [tool("a", parameters={"maximum": 1.0})], "1.0"),
    ("whole number with an exponent", [tool("a", parameters={"maximum": 1e22})], "1e+22"),
    (
        "two tools of one name",
        [tool("a"), tool("b"), tool("a")],
        '{"type": "function", "function": {"name": "a"}}]',
    ),
]  # fmt: skip

STABLE: list[tuple[str, list[Any]]] = [
    ("no tools", []),
    ("one habit", [tool("b", description=""), tool("a", description="", parameters={})]),
    ("sorted keys", [TURNED, {**TURNED, "function": {"description": "", "name": "a"}}]),
    (
        "order of tools and of arguments",
        [
            tool("z", parameters=schema(a={}, b={}), description=""),
            tool("a", parameters=schema(b={}, a={})),
        ],
    ),
    (
        "argument names that are keywords of schemas",
        [tool("a", parameters=schema(type={}, description={})),
         tool("b", parameters=schema(description={}, type={}))],
    ),
    (
        "values of the author's own",
        [tool("a", parameters={"default": {"a": 1, "b": 2}, "examples": [{"b": 1, "a": 2}]})],
    ),
    (
        "keys that come and go",
        [tool("a", parameters=schema(x={"type": "", "enum": []}, y={"type": "", "description": ""},
                                     z={"type": "", "enum": [], "description": ""}))],
    ),
    ("other numbers", [tool("a", parameters={"maximum": 0.5, "minimum": -1, "multipleOf": 10})]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tools", "place"), [case[1:] for case in UNSTABLE], ids=[case[0] for case in UNSTABLE]
)
def test_unstable_tools_are_found(tools: list[Any], place: str) -> None:
    text = json.dumps(tools)
    assert offsets("unstable-tool-json", text, "toolDefinitions") == [text.rindex(place)]


def test_keys_that_the_engine_orders_cost_no_tokens() -> None:
    turned = [{"type": "", "description": ""}, {"description": "", "type": ""}]
    text = json.dumps([tool("a"), {**TURNED, "x": 0}, tool("c", parameters={"allOf": turned})])
    lost = [finding.tokensLost for finding in found("unstable-tool-json", text, "toolDefinitions")]
    assert lost == [0, estimate_tokens(text[text.rindex('"type"') :])]


@pytest.mark.parametrize("tools", [case[1] for case in STABLE], ids=[case[0] for case in STABLE])
@pytest.mark.parametrize("indent", [None, 2])
def test_stable_tools_are_left_alone(tools: list[Any], indent: int | None) -> None:
    text = json.dumps(tools, indent=indent)
    assert offsets("unstable-tool-json", text, "toolDefinitions") == []


@pytest.mark.parametrize("text", ["", " ", "{", "{}", "[1]", "[{}]", '[{"a":1,"a":2}]', "[" * 5000])
def test_tools_that_are_none_have_no_findings(text: str) -> None:
    assert offsets("unstable-tool-json", text, "toolDefinitions") == []


def words(text: str) -> int:
    """Count words: tokens that a reader of a test can count too."""
    return len(text.split())


@pytest.mark.parametrize(("count", "short"), [(0, True), (255, True), (256, False)])
def test_short_prefix_by_counted_tokens(count: int, short: bool) -> None:
    payload = Payload(systemInstructions="word " * count)
    findings = lint_payload(payload, count_tokens=words)
    assert [finding.rule for finding in findings] == ["short-prefix"] * short
    if short:
        assert f"the whole prefix has {count} tokens, fewer than 256" in findings[0].message
        assert findings[0].tokensLost == 0


def test_short_prefix_by_estimate() -> None:
    (finding,) = lint_payload(Payload(systemInstructions="word"), model="m")
    assert "has 1 tokens (estimated) for model m, fewer than 256" in finding.message
    assert lint_payload(Payload(systemInstructions="x" * 1021)) == []


def test_short_prefix_counts_all_texts() -> None:
    text = "word " * 100
    payload = Payload(
        systemInstructions=text, defaultModeSpecs=text, toolDefinitions=json.dumps([tool(text)])
    )
    assert lint_payload(payload, count_tokens=words) == []
    tools_alone = Payload(toolDefinitions=json.dumps([tool("f")]))
    assert [f.path for f in lint_payload(tools_alone)] == ["toolDefinitions"]


def test_tokens_lost_are_those_from_the_place_to_the_end() -> None:
    payload = Payload(
        systemInstructions="one two\nToday is 2026-11-29 four five",
        defaultModeSpecs="six seven\nDate: 2026-11-29",
        toolDefinitions=json.dumps([tool("eight")]),
    )
    findings = lint_payload(payload, count_tokens=words, ignore=["short-prefix"])
    assert [f.tokensLost for f in findings] == [3 + 4 + 5, 1 + 5]
    assert "the 12 tokens from here on can never be reused" in findings[0].message
    estimated = lint_payload(payload, ignore=["short-prefix"])[1]
    rest = estimate_tokens("2026-11-29") + estimate_tokens(payload.toolDefinitions)
    assert estimated.tokensLost == rest
    assert f"the {rest} tokens (estimated) from here on" in estimated.message


MESSY = Payload(
    systemInstructions="User: a\nAssistant: b\n" + "Today is 2026-11-29.\n<|im_end|>\n" * 50,
    toolDefinitions=json.dumps([tool("a", parameters={"maximum": 1.0})] * 50),
)


def test_findings_are_bounded_sorted_and_of_every_rule() -> None:
    findings = lint_payload(MESSY)
    order = ["systemInstructions", "defaultModeSpecs", "toolDefinitions"]
    places = [(order.index(f.path), f.offset) for f in findings]
    assert places == sorted(places)
    assert len(findings) <= MAX_LINT
    assert {f.rule for f in findings} == set(RULES) - {"short-prefix"}
    assert all(sum(f.rule == rule for f in findings) <= MAX_PER_RULE for rule in RULES)


@pytest.mark.parametrize("rule", RULES)
def test_rules_can_be_ignored(rule: str) -> None:
    short = MESSY.model_copy(update={"systemInstructions": "Today is 2026-11-29 <|im_end|>"})
    tools = json.dumps([tool("a"), tool("a")])
    payload = Payload(systemInstructions=short.systemInstructions, toolDefinitions=tools)
    assert {f.rule for f in lint_payload(payload)} == set(RULES)
    assert {f.rule for f in lint_payload(payload, ignore={rule})} == set(RULES) - {rule}


def test_messages_never_quote_the_text() -> None:
    secret = "Sesame2026"
    payload = Payload(
        systemInstructions=f"Today is 2026-11-29 {secret} <|im_end|>\nUser: {secret}\nAI: {secret}",
        toolDefinitions=json.dumps(
            [tool(secret, parameters={secret: 1.0}), tool(secret), TURNED]
        ),
    )  # fmt: skip
    findings = lint_payload(payload)
    assert len(findings) >= 6
    assert all(secret not in f.message and "2026-11-29" not in f.message for f in findings)


PIECES = st.sampled_from(
    ["Today is ", "2026-11-29", "T14:15", "User: ", "AI: ", "\n", "<|im_start|>", "[INST]", "now ",
     "Mon, ", "1764425700", "Nov 29, 2026", ". ", "e.g. ", '"role": "user"', "\\n", "🙂", "\ud800"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(st.characters(), max_size=30)
SCRAPS = st.sampled_from(
    ["[", "]", "{", "}", ",", ":", '"type"', '"function"', '"name"', '"parameters"', "1.0", "null",
     '{"type":"function","function":{"name":"a"}}', "-", "1e999", '"\\ud800"']
)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["type", "items", "a"]), v),
    max_leaves=6,
)
TOOL_TEXTS = (
    st.lists(SCRAPS, max_size=10).map("".join)
    | st.text(st.characters(), max_size=20)
    | st.lists(JSON_VALUES.map(lambda value: tool("f", parameters=value)), max_size=3).map(
        json.dumps
    )
)


@given(TEXTS, TEXTS, TOOL_TEXTS, TEXTS)
def test_any_payload_is_answered(system: str, specs: str, tools: str, options: str) -> None:
    payload = Payload(
        systemInstructions=system,
        defaultModeSpecs=specs,
        toolDefinitions=tools,
        chatTemplateOptions=options,
    )
    findings = lint_payload(payload)
    assert len(findings) <= MAX_LINT
    for finding in findings:
        text = getattr(payload, finding.path)
        assert 0 <= finding.offset <= len(text)
        rest = len(text.encode("utf-8", "surrogatepass"))
        assert finding.tokensLost <= rest + len(specs) * 4 + len(tools) * 4 + 2
        assert len(finding.message) <= 1024
    assert findings == lint_payload(payload)


REPEATED = [
    "a", " ", "1-", "2026-11-29 ", "today 2026-11-29 ", "User: a\n", "User: a\nAI: b\n", "*", "\n",
    "Mon May ", "<|", "[INST", "1600000000 now ", '"role": "', "1:", "\\", '"', ". A",
]  # fmt: skip


@pytest.mark.timeout(20)  # a rule that is not linear takes minutes
def test_large_texts_take_linear_time() -> None:
    for piece in REPEATED:
        text = (piece * (131_072 // len(piece) + 1))[:131_072]
        assert len(lint_payload(Payload(systemInstructions=text))) <= MAX_LINT
