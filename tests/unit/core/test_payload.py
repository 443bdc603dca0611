"""Declared text: what it means and what is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from promptprefix.payload import CONTENT_FIELDS, Payload, PayloadError
from promptprefix.resource import InlineContent

TOOL = '{"type":"function","function":{"name":"f"}}'


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("{", "not JSON"),
        ("{}", "must be a JSON array"),
        ("null", "must be a JSON array"),
        ('"[]"', "must be a JSON array"),
        ("[1]", "tool 0 must be an object"),
        (f"[{TOOL},[]]", "tool 1 must be an object"),
        ("[{}]", "tool 0 must be {"),
        ('[{"type":"function"}]', "tool 0 must be {"),
        ('[{"type":"function","name":"f"}]', "tool 0 must be {"),
        ('[{"type":"custom","function":{"name":"f"}}]', "tool 0 must be {"),
        ('[{"type":"function","function":{}}]', "tool 0 has no function.name"),
        ('[{"type":"function","function":{"name":""}}]', "tool 0 has no function.name"),
        ('[{"type":"function","function":{"name":"f","name":"g"}}]', "'name' stands twice"),
    ],
)
def test_bad_tools(tools: str, message: str) -> None:
    with pytest.raises(PayloadError, match=r"^toolDefinitions: ") as caught:
        _ = Payload(toolDefinitions=tools).tools
    assert message in str(caught.value)
    assert caught.value.reason == "InvalidTools"


@pytest.mark.parametrize("options", ["[]", "null", "1", "{", '{"a":1,"a":2}', '{"a":NaN}'])
def test_bad_options(options: str) -> None:
    with pytest.raises(PayloadError, match=r"^chatTemplateOptions: ") as caught:
        _ = Payload(chatTemplateOptions=options).options
    assert caught.value.reason == "InvalidContent"


@pytest.mark.parametrize(
    ("instructions", "specs", "system"),
    [
        ("", "", ""),
        ("a", "", "a"),
        ("a", "b", "a\n\nb"),
        ("", "b", "\n\nb"),
        (" a \n", " ", " a \n\n\n "),
    ],
)
def test_system_text(instructions: str, specs: str, system: str) -> None:
    assert Payload(systemInstructions=instructions, defaultModeSpecs=specs).system == system


@pytest.mark.parametrize(
    ("payload", "empty"),
    [
        (Payload(), True),
        (Payload(toolDefinitions=" ", chatTemplateOptions='{"a":1}'), True),
        (Payload(systemInstructions=" "), False),
        (Payload(defaultModeSpecs="x"), False),
        (Payload(toolDefinitions=f"[{TOOL}]"), False),
    ],
)
def test_empty(payload: Payload, empty: bool) -> None:
    assert payload.empty is empty


def test_from_data_takes_the_content_fields() -> None:
    data = {"systemInstructions": "a", "toolDefinitions": "[]", "README": "text"}
    assert Payload.from_data(data) == Payload(systemInstructions="a")


@pytest.mark.parametrize("text", ["x", "é 🙂 \r\n", ""])
def test_from_secret_takes_the_bytes(text: str) -> None:
    data = {"systemInstructions": base64.b64encode(text.encode()).decode(), "password": "%"}
    assert Payload.from_secret(data) == Payload(systemInstructions=text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("%%%%", "toolDefinitions: is not base64"),
        ("c2VjcmV0b", "toolDefinitions: is not base64"),
        ("é", "toolDefinitions: is not base64"),
        ("c2VjcmV0/w==", "toolDefinitions: is not UTF-8 text (byte 6)"),
    ],
)
def test_from_secret_names_the_key_alone(value: str, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        Payload.from_secret({"toolDefinitions": value})
    assert (str(caught.value), caught.value.reason) == (message, "InvalidContent")
    assert caught.value.__cause__ is None


def test_from_secret_without_a_content_field() -> None:
    with pytest.raises(PayloadError, match="none of the keys"):
        Payload.from_secret({"password": "c2VjcmV0"})


@pytest.mark.parametrize("data", [{}, {"README": "text"}, {"systeminstructions": "a"}])
def test_from_data_without_a_content_field(data: dict[str, str]) -> None:
    with pytest.raises(PayloadError, match="none of the keys systemInstructions, "):
        Payload.from_data(data)


TEXTS = st.fixed_dictionaries(
    {name: st.text(st.characters(), max_size=5) for name in CONTENT_FIELDS}
)


@given(TEXTS, TEXTS)
def test_digest_is_of_the_raw_text(one: dict[str, str], two: dict[str, str]) -> None:
    assert (Payload(**one).digest == Payload(**two).digest) == (one == two)


def test_digest_never_changes() -> None:
    assert Payload(systemInstructions="You are a bot.").digest == (
        "82335f74c0f2c15ced88872cd142a5a9a456aa2c96a74135e96e9fa2a63e4a53"
    )


def test_no_text_shows_in_repr_or_errors() -> None:
    assert "secret words" not in repr(Payload(systemInstructions="secret words"))
    assert "secret words" not in repr(InlineContent(systemInstructions="secret words"))
    with pytest.raises(ValidationError) as caught:
        Payload(systemInstructions=["secret words"])  # type: ignore[arg-type]
    assert "secret words" not in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        InlineContent(systemInstructions="secret words", unknown=1)  # type: ignore[call-arg]
    assert "secret words" not in str(caught.value)


def test_tokens_are_estimated_over_system_text_and_tools() -> None:
    assert Payload(systemInstructions="a" * 8, defaultModeSpecs="bb").estimated_tokens == 3 + 1
    assert Payload(toolDefinitions=f"[{TOOL}]").estimated_tokens == -(-len(TOOL) // 4) + 1
