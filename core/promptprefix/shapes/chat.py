"""``/v1/chat/completions``: OpenAI's chat completion request as vLLM reads it."""

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
    "chat_template": Cause.OWN_TEMPLATE,
    "documents": Cause.OWN_TEMPLATE,
    "add_special_tokens": Cause.SPECIAL_TOKENS,
    "truncate_prompt_tokens": Cause.TRUNCATED,
    "prompt_logprobs": Cause.SKIPS_CACHE,
    "echo": Cause.SKIPS_CACHE,
}


def _surroundings(body: JsonValue) -> Surroundings:
    fields = body_object(body, _MARKERS)
    model = model_name(fields)
    options = template_options(fields, fields.get("reasoning_effort"))
    return Surroundings(model, _tools(fields), options)


def _system(body: JsonValue) -> str:
    messages = body_object(body).get("messages")
    if not is_list(messages) or not messages:
        raise UndeclaredError(Cause.MALFORMED, "messages")
    return leading_system(messages[0], "messages[0]", ("text",))


def _tools(body: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    if body.get("tool_choice") == "none":
        return []
    return tool_list(body) or []


CHAT = Shape(
    path="/v1/chat/completions",
    surroundings=_surroundings,
    system=_system,
    system_fields=("messages",),
    conversation="messages",
    turns=Turns.FIRST,
    values=("tools", "tool_choice", "reasoning_effort", OPTIONS_FIELD),
    markers=_MARKERS,
)
