"""Requests rewritten to the declared bytes: what changes, what never does, and what is refused."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptprefix.canonical import JsonValue, parse_json
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.shapes import SHAPES
from promptprefix_router.rewriting.declared_text import DeclaredText
from promptprefix_router.rewriting.normalising import Obstacle, ObstacleError, normalised

MODEL = "m"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SYSTEM = "Zurück in Zeile eins.\nZeile zwei."
PARAMETERS = '{"type": "object", "properties": {"b": {"type": "string"}, "a": {"minimum": 1.0}}}'
TOOLS = (
    ' [{"type": "function", "function": {"name": "look_up", "description": "Findet’s: é.",\n'
    f'  "parameters": {PARAMETERS}}}}}]\n'
)
PAYLOAD = Payload(
    systemInstructions=SYSTEM,
    toolDefinitions=TOOLS,
    chatTemplateOptions='{"mood": "ä", "steps": [1.0]}',
)
DECLARED = DeclaredText.of(PAYLOAD)
FINGERPRINT = payload_fingerprint(MODEL, PAYLOAD)
NFD = unicodedata.normalize("NFD", SYSTEM).replace("\n", "\r\n")
OTHER_PARAMETERS = {
    "properties": {"a": {"minimum": 1}, "b": {"type": "string"}},
    "type": "object",
}
FUNCTION = {
    "parameters": OTHER_PARAMETERS,
    "description": unicodedata.normalize("NFD", "Findet’s: é."),
    "name": "look_up",
}
OPTIONS = {"chat_template_kwargs": {"steps": [1], "mood": unicodedata.normalize("NFD", "ä")}}
USER = {"role": "user", "content": "Wo?"}


def rewritten(path: str, body: bytes) -> bytes:
    return normalised(body, SHAPES[path], DECLARED, FINGERPRINT)


def dumped(body: Mapping[str, Any]) -> bytes:
    return json.dumps({"model": MODEL, **OPTIONS, **body}).encode()


def chat(content: Any = NFD, **more: Any) -> bytes:
    messages = [{"role": "system", "content": content, "unknown": 1}, USER]
    tools = [{"function": FUNCTION, "type": "function"}]
    return dumped({"messages": messages, "tools": tools, **more})


def message(system: Any = NFD, **more: Any) -> bytes:
    tool = {
        "input_schema": OTHER_PARAMETERS,
        "cache_control": {"type": "ephemeral"},
        "type": "custom",
        "description": FUNCTION["description"],
        "name": "look_up",
    }
    return dumped({"system": system, "messages": [USER], "tools": [tool], **more})


def response(**more: Any) -> bytes:
    tool = {"strict": None, "type": "function", **FUNCTION}
    return dumped({"instructions": NFD, "input": "Wo?", "tools": [tool], **more})


def in_input(content: Any) -> bytes:
    return response(instructions=None, input=[{"role": "developer", "content": content}, USER])


def part(text: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": text, **more}


TWO = NFD.split("\r\n")
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}

SPELLINGS = [
    (CHAT, chat()),
    (CHAT, chat([part(NFD, **EPHEMERAL)])),
    (CHAT, chat([part(text) for text in TWO])),
    (CHAT, chat(TWO)),
    (MESSAGES, message()),
    (MESSAGES, message([part(NFD, **EPHEMERAL)])),
    (MESSAGES, message([part("x-anthropic-billing-header: cch=1"), part(NFD, **EPHEMERAL)])),
    (MESSAGES, message([part(NFD[:8]), part(NFD[8:])])),
    (RESPONSES, response()),
    (RESPONSES, in_input(NFD)),
    (RESPONSES, in_input([part(NFD, "input_text", unknown=2)])),
    (RESPONSES, in_input([part(text, "input_text") for text in TWO])),
]


@pytest.mark.parametrize(("path", "body"), SPELLINGS)
def test_the_immutable_part_becomes_the_declared_one(path: str, body: bytes) -> None:
    changed = rewritten(path, body)
    part = SHAPES[path].immutable_part(parse_json(changed))
    assert part.system == SYSTEM
    assert part.fingerprint == FINGERPRINT
    assert parameters(path, changed) == PARAMETERS
    assert json.loads(changed)["chat_template_kwargs"] == {"mood": "ä", "steps": [1.0]}
    assert b'"steps": [1.0]' in changed
    assert rewritten(path, changed) == changed


def parameters(path: str, body: bytes) -> str:
    """Return the declared tool's parameters as the body has them, order of keys included."""
    (tool,) = json.loads(body)["tools"]
    function = tool["function"] if path == CHAT else tool
    return json.dumps(function["input_schema" if path == MESSAGES else "parameters"])


def test_only_the_declared_pieces_change() -> None:
    body = chat().replace(b'"Wo?"', b'"\\u0057o?" ').replace(b'"unknown": 1', b'"unknown":1.00')
    changed = rewritten(CHAT, body)
    start = b'{"model": "m", "chat_template_kwargs": {"mood": "\xc3\xa4", "steps": [1.0]}, '
    message = json.dumps(SYSTEM, ensure_ascii=False).encode()
    turns = b'"messages": [{"role": "system", "content": %s, "unknown":1.00}, ' % message
    user = b'{"role": "user", "content": "\\u0057o?" }], "tools": '
    assert changed == start + turns + user + TOOLS.strip().encode() + b"}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "system", "content": SYSTEM}, USER]}),
        (MESSAGES, {"system": SYSTEM, "messages": [USER]}),
        (MESSAGES, {"system": [part(SYSTEM[:4], **EPHEMERAL), part(SYSTEM[4:])],
                    "messages": [USER]}),
        (RESPONSES, {"instructions": SYSTEM, "input": [USER]}),
    ],
)  # fmt: skip
def test_what_reads_as_declared_is_left_alone(path: str, body: Mapping[str, Any]) -> None:
    (tool,) = json.loads(TOOLS)
    tools = {
        CHAT: tool,
        MESSAGES: {"name": "look_up", "description": "Findet’s: é.",
                   "input_schema": json.loads(PARAMETERS)},
        RESPONSES: {"type": "function", **tool["function"]},
    }  # fmt: skip
    options = {"chat_template_kwargs": PAYLOAD.options}
    whole = dumped({**body, "tools": [tools[path]], **options})
    assert rewritten(path, whole) is whole


def test_a_text_without_tools_and_options() -> None:
    payload = Payload(systemInstructions=SYSTEM, toolDefinitions="", chatTemplateOptions=" ")
    declared, fingerprint = DeclaredText.of(payload), payload_fingerprint(MODEL, payload)
    for path, body in (
        (CHAT, {"messages": [{"role": "system", "content": NFD}, USER], "tools": []}),
        (MESSAGES, {"system": NFD, "messages": [USER]}),
        (RESPONSES, {"instructions": NFD, "input": "Wo?", "tool_choice": "none",
                     "tools": [{"type": "function"}]}),
    ):  # fmt: skip
        whole = {"model": MODEL, **body}
        changed = normalised(json.dumps(whole).encode(), SHAPES[path], declared, fingerprint)
        assert changed != json.dumps(whole).encode()
        assert json.dumps(whole).replace(json.dumps(NFD)[1:-1], "") == changed.decode().replace(
            json.dumps(SYSTEM, ensure_ascii=False)[1:-1], ""
        )


def test_tools_without_a_text() -> None:
    payload = Payload(toolDefinitions=TOOLS)
    declared, fingerprint = DeclaredText.of(payload), payload_fingerprint(MODEL, payload)
    body = {"model": MODEL, "input": [USER], "tools": [{"type": "function", **FUNCTION}]}
    changed = normalised(json.dumps(body).encode(), SHAPES[RESPONSES], declared, fingerprint)
    assert parameters(RESPONSES, changed) == PARAMETERS


OBSTACLES = [
    (CHAT, chat([part(TWO[0], **EPHEMERAL), part(TWO[1])]), Obstacle.PARTS),
    (CHAT, chat([part(TWO[0]), part(TWO[1], name="x")]), Obstacle.PARTS),
    (MESSAGES, message([part(NFD[:8]), part(NFD[8:], **EPHEMERAL)]), Obstacle.PARTS),
    (MESSAGES, message([part("x-anthropic-billing-header: 1"), part(NFD[:8]), part(NFD[8:])]),
     Obstacle.PARTS),
    (CHAT, chat()[:-1] + b', "tools": []}', Obstacle.NOT_STRICT),
    (CHAT, chat()[:-1] + b', "\\u0074ools": []}', Obstacle.NOT_STRICT),
    (CHAT, chat()[:-1] + b', "x": {"y": 1, "y": 2}}', Obstacle.NOT_STRICT),
    (CHAT, chat()[:-1] + b', "x": NaN}', Obstacle.NOT_STRICT),
    (CHAT, chat().decode().encode("utf-16"), Obstacle.NOT_STRICT),
    (CHAT, b"\xef\xbb\xbf" + chat(), Obstacle.NOT_STRICT),
    (CHAT, b"{", Obstacle.NOT_STRICT),
    (CHAT, b"[]", Obstacle.NOT_STRICT),
    (CHAT, chat(SYSTEM + "!"), Obstacle.OTHER_MEANING),
    (CHAT, chat(chat_template="{{ x }}"), Obstacle.OTHER_MEANING),
    (CHAT, chat(reasoning_effort="low"), Obstacle.OTHER_MEANING),
    (CHAT, chat(tool_choice="none"), Obstacle.OTHER_MEANING),
    (MESSAGES, message(messages=[USER, {"role": "system", "content": "x"}]),
     Obstacle.OTHER_MEANING),
    (MESSAGES, chat(), Obstacle.OTHER_MEANING),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "obstacle"), OBSTACLES)
def test_what_could_change_the_meaning_is_refused(
    path: str, body: bytes, obstacle: Obstacle
) -> None:
    with pytest.raises(ObstacleError) as caught:
        rewritten(path, body)
    assert caught.value.obstacle is obstacle


def test_nothing_of_the_text_shows() -> None:
    assert "Zeile" not in repr(DECLARED)
    assert "look_up" not in repr(DECLARED)


TEXT = st.text(st.sampled_from('aé\u00fc\u1e69ZΩ\n "\\\u2028🙂<'), min_size=1, max_size=24)
NUMBERS = st.sampled_from([1, 1.0, -2.5, 0, 1e-7])
SCHEMA = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "é", "z", "type"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    """Declared texts with tools whose schemas have every kind of value."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"f{index}",
                **draw(st.fixed_dictionaries({}, optional={"description": TEXT})),
                "parameters": {"type": "object", **draw(st.dictionaries(TEXT, SCHEMA, max_size=3))},
            },
        }
        for index in range(draw(st.integers(0, 2)))
    ]
    options = draw(st.dictionaries(st.sampled_from(["a", "mood", "ä"]), SCHEMA, max_size=2))
    return Payload(
        systemInstructions=draw(TEXT),
        toolDefinitions=json.dumps(tools, ensure_ascii=False, indent=draw(st.sampled_from([0, 2]))),
        chatTemplateOptions=json.dumps(options),
    )


class Speller:
    """Says the same in another spelling, wherever the fingerprint allows one."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def text(self, value: str) -> str:
        form = self._draw(st.sampled_from(["NFC", "NFD"]))
        end = self._draw(st.sampled_from(["\n", "\r\n", "\r"]))
        return unicodedata.normalize(form, value).replace("\n", end)

    def value(self, value: JsonValue) -> Any:
        match value:
            case str():
                return self.text(value)
            case float() if value.is_integer():
                return self._draw(st.sampled_from([value, int(value)]))
            case Mapping():
                pairs = [(self.text(key), self.value(item)) for key, item in value.items()]
                return dict(self._draw(st.permutations(pairs)))
            case list():
                return [self.value(item) for item in value]
        return value


@st.composite
def requests(draw: st.DrawFn) -> tuple[Payload, str, bytes]:
    """A declared text, and a request to one of the APIs that means it."""
    payload = draw(payloads())
    spell = Speller(draw)
    path = draw(st.sampled_from([CHAT, MESSAGES, RESPONSES]))
    tools = [spell.value(tool) for tool in payload.tools]
    flat = [tool["function"] for tool in tools]
    system: Any = spell.text(payload.system)
    kind = "input_text" if path == RESPONSES else "text"
    whole = draw(st.sampled_from([system, [part(system, kind, **EPHEMERAL)]]))
    lead = {"role": "system", "content": whole, "zz": 1.5}
    fields: dict[str, Any] = {
        CHAT: {"messages": [lead, USER], "tools": tools},
        MESSAGES: {"system": whole, "messages": [USER], "tools": [
            {"input_schema" if k == "parameters" else k: v for k, v in f.items()} for f in flat
        ]},
        RESPONSES: {"input": [lead, USER], "tools": [{"type": "function", **f} for f in flat]},
    }[path]  # fmt: skip
    if not tools:
        del fields["tools"]
    if payload.options:
        fields["chat_template_kwargs"] = spell.value(payload.options)
    more = draw(st.dictionaries(st.sampled_from(["x", "seed", "metadata"]), SCHEMA, max_size=2))
    pairs = draw(st.permutations([*fields.items(), *more.items(), ("model", MODEL)]))
    ascii_only, space = draw(st.booleans()), draw(st.sampled_from([None, 1]))
    return payload, path, json.dumps(dict(pairs), ensure_ascii=ascii_only, indent=space).encode()


def rest(path: str, body: bytes) -> str:
    """Everything but the immutable part, in its order."""
    value = json.loads(body)
    for tool in value.get("tools", ()):
        for name in ("name", "description", "parameters", "input_schema", "function", "type"):
            tool.pop(name, None)
    value.pop("chat_template_kwargs", None)
    holder = value if path == MESSAGES else value["input" if path == RESPONSES else "messages"][0]
    name = "system" if path == MESSAGES else "content"
    if isinstance(holder[name], str):
        holder[name] = ""
    else:
        holder[name][0]["text"] = ""
    return json.dumps(value)


@given(requests())
def test_a_rewritten_request_means_the_same_and_reads_as_declared(
    request: tuple[Payload, str, bytes],
) -> None:
    payload, path, body = request
    shape, declared = SHAPES[path], DeclaredText.of(payload)
    fingerprint = payload_fingerprint(MODEL, payload)
    changed = normalised(body, shape, declared, fingerprint)
    part = shape.immutable_part(parse_json(changed))
    assert part.fingerprint == fingerprint
    assert part.system == payload.system
    assert json.dumps(part.options) == json.dumps(payload.options)
    assert rest(path, changed) == rest(path, body)
    assert normalised(changed, shape, declared, fingerprint) == changed
    for found, wanted in zip(part.tools, payload.tools, strict=True):
        assert isinstance(found, Mapping)
        assert isinstance(wanted, Mapping)
        for name, value in wanted["function"].items():
            assert json.dumps(found["function"][name]) == json.dumps(value)
