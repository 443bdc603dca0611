"""``/v1/messages``: Anthropic's request, as vLLM turns it into a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from promptprefix.canonical import JsonValue
from promptprefix.request import Cause, Surroundings, UndeclaredError
from promptprefix.shapes.reading import (
    OPTIONS_FIELD,
    body_object,
    is_list,
    model_name,
    template_options,
    tool_list,
)
from promptprefix.shapes.shape import Shape, Turns

BILLING_HEADER = "x-anthropic-billing-header"
"""How a block of Claude Code begins that differs in every request; vLLM leaves such blocks out."""

_NEVER_SHOWN = ("type", "cache_control", "input_schema")
"""Fields of a tool that are not a model's to see under these names."""


def _surroundings(body: JsonValue) -> Surroundings:
    fields = body_object(body)
    model = model_name(fields)
    _check_turns(fields.get("messages"))
    options = template_options(fields, _effort(fields))
    return Surroundings(model, _tools(fields), options)


def _check_turns(messages: JsonValue) -> None:
    if not is_list(messages) or not messages:
        raise UndeclaredError(Cause.MALFORMED, "messages")
    for message in messages:
        if not isinstance(message, Mapping):
            raise UndeclaredError(Cause.MALFORMED, "messages")
        if message.get("role") == "system":
            raise UndeclaredError(Cause.INLINE_SYSTEM, "messages")


def _effort(body: Mapping[str, JsonValue]) -> JsonValue:
    """Return what the template hears of reasoning; a budget of thinking is the sampler's."""
    thinking = body.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
        raise UndeclaredError(Cause.REASONING, "thinking.type")
    output = body.get("output_config")
    return output.get("effort") if isinstance(output, Mapping) else None


def _system(body: JsonValue) -> str:
    system = body_object(body).get("system")
    if system is None or isinstance(system, str):
        return system or ""
    if not is_list(system):
        raise UndeclaredError(Cause.MALFORMED, "system")
    texts = (_block_text(block) for block in system)
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _block_text(block: JsonValue) -> str:
    if isinstance(block, Mapping) and block.get("type") == "text":
        text = block.get("text")
        if text is None or isinstance(text, str):
            return text or ""
    raise UndeclaredError(Cause.NOT_TEXT, "system")


def _tools(body: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    choice = body.get("tool_choice")
    tools = tool_list(body)
    if tools is None or (isinstance(choice, Mapping) and choice.get("type") == "none"):
        return []
    if not tools:
        raise UndeclaredError(Cause.EMPTY_TOOLS, "tools")
    return [_chat_tool(tool) for tool in tools]


def _chat_tool(tool: JsonValue) -> JsonValue:
    """Return a tool in the shape of a chat completion; fields that are null are absent there."""
    if not isinstance(tool, Mapping):
        raise UndeclaredError(Cause.MALFORMED, "tools")
    schema = tool.get("input_schema")
    if tool.get("type") not in (None, "custom") or not isinstance(schema, Mapping):
        raise UndeclaredError(Cause.NOT_A_FUNCTION, "tools")
    shown = {k: v for k, v in tool.items() if v is not None and k not in _NEVER_SHOWN}
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    return {"type": "function", "function": {**shown, "parameters": parameters}}


MESSAGES = Shape(
    path="/v1/messages",
    surroundings=_surroundings,
    system=_system,
    system_fields=("system",),
    conversation="messages",
    turns=Turns.ROLES,
    values=("system", "tools", "tool_choice", "thinking", "output_config", OPTIONS_FIELD),
    markers={},
)
