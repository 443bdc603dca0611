"""``/v1/responses``: OpenAI's Responses request, as vLLM turns it into a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from promptprefix.canonical import JsonValue
from promptprefix.request import Cause, Surroundings, UndeclaredError
from promptprefix.shapes.reading import (
    OPTIONS_FIELD,
    body_object,
    is_list,
    leading_system,
    model_name,
    template_options,
    tool_list,
)
from promptprefix.shapes.shape import Shape, Turns

_MARKERS: Mapping[str, Cause] = {
    "previous_response_id": Cause.STORED_CONTEXT,
    "previous_input_messages": Cause.STORED_CONTEXT,
    "conversation": Cause.STORED_CONTEXT,
    "prompt": Cause.STORED_CONTEXT,
}


def _surroundings(body: JsonValue) -> Surroundings:
    fields = body_object(body, _MARKERS)
    model = model_name(fields)
    reasoning = fields.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    if fields.get("truncation") not in (None, "disabled"):
        raise UndeclaredError(Cause.TRUNCATED, "truncation")
    options = template_options(fields, effort)
    return Surroundings(model, _tools(fields), options)


def _system(body: JsonValue) -> str:
    """Return the text of the first message: the instructions, else a leading system item."""
    fields = body_object(body)
    instructions = fields.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise UndeclaredError(Cause.MALFORMED, "instructions")
    items = fields.get("input")
    if isinstance(items, str):
        return instructions or ""
    if not is_list(items) or not items:
        raise UndeclaredError(Cause.MALFORMED, "input")
    return instructions or leading_system(items[0], "input[0]", ("input_text",))


def _tools(body: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    if body.get("tool_choice") == "none":
        return []
    return [_chat_tool(tool) for tool in tool_list(body) or []]


def _chat_tool(tool: JsonValue) -> JsonValue:
    """Return a tool in the shape of a chat completion; fields that are null are absent there."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise UndeclaredError(Cause.NOT_A_FUNCTION, "tools")
    function = {k: v for k, v in tool.items() if k != "type" and v is not None}
    return {"type": "function", "function": function}


RESPONSES = Shape(
    path="/v1/responses",
    surroundings=_surroundings,
    system=_system,
    system_fields=("instructions", "input"),
    conversation="input",
    turns=Turns.FIRST_OR_TEXT,
    values=("instructions", "tools", "tool_choice", "reasoning", "truncation", OPTIONS_FIELD),
    markers=_MARKERS,
)
