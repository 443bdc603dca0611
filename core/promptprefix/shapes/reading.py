"""Reading the fields that all APIs share. Each function raises `UndeclaredError`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

from promptprefix.canonical import JsonValue
from promptprefix.request import Cause, UndeclaredError

SYSTEM_ROLES = ("system", "developer")

OPTIONS_FIELD = "chat_template_kwargs"
TRANSFER_FIELD = "kv_transfer_params"
TOKENS_FIELD = "prompt_token_ids"
"""Key of the transfer parameters with which a request brings its own tokens."""

_PRINTABLE = ("name", "task")
"""Fields of a message that the engine hands to the template when they are strings."""


def body_object(
    body: JsonValue, markers: Mapping[str, Cause] = MappingProxyType({})
) -> Mapping[str, JsonValue]:
    """Return ``body``, an object in which no marker is set and that brings no tokens."""
    if not isinstance(body, Mapping):
        raise UndeclaredError(Cause.MALFORMED)
    for name, cause in markers.items():
        if is_set(body.get(name)):
            raise UndeclaredError(cause, name)
    transfer = body.get(TRANSFER_FIELD)
    if isinstance(transfer, Mapping) and transfer.get(TOKENS_FIELD) is not None:
        raise UndeclaredError(Cause.OWN_TOKENS, f"{TRANSFER_FIELD}.{TOKENS_FIELD}")
    return body


def is_set(value: JsonValue) -> bool:
    """Return whether a marker with ``value`` is set. Zero is a number of log probabilities."""
    return value is not None and value is not False


def model_name(body: Mapping[str, JsonValue]) -> str:
    """Return the model's name as the client sends it."""
    model = body.get("model")
    if not isinstance(model, str):
        raise UndeclaredError(Cause.MALFORMED, "model")
    return model


def template_options(
    body: Mapping[str, JsonValue], effort: JsonValue = None
) -> Mapping[str, JsonValue]:
    """Return the arguments of the chat template, ``{}`` if there are none.

    A reasoning effort is two of them: a template may print it before everything else.
    """
    options = body.get(OPTIONS_FIELD) or {}
    if not isinstance(options, Mapping):
        raise UndeclaredError(Cause.MALFORMED, OPTIONS_FIELD)
    if effort is None:
        return options
    return {"enable_thinking": effort != "none", **options, "reasoning_effort": effort}


def tool_list(body: Mapping[str, JsonValue]) -> Sequence[JsonValue] | None:
    """Return the tools as they are, None if there is no list."""
    tools = body.get("tools")
    if tools is not None and not is_list(tools):
        raise UndeclaredError(Cause.MALFORMED, "tools")
    return tools


def leading_system(message: JsonValue, where: str, part_types: Collection[str]) -> str:
    """Return the text of the first message if that is a system message, else ``""``."""
    if not isinstance(message, Mapping):
        raise UndeclaredError(Cause.MALFORMED, where)
    if message.get("role") not in SYSTEM_ROLES:
        return ""
    if message.get("type", "message") != "message":
        raise UndeclaredError(Cause.NOT_TEXT, f"{where}.type")
    _check_nothing_else(message, where)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not is_list(content):
        raise UndeclaredError(Cause.MALFORMED, f"{where}.content")
    return "\n".join(_text_part(part, f"{where}.content", part_types) for part in content)


def _check_nothing_else(message: Mapping[str, JsonValue], where: str) -> None:
    for name in _PRINTABLE:
        if isinstance(message.get(name), str):
            raise UndeclaredError(Cause.MESSAGE_FIELD, f"{where}.{name}")
    if message.get("tools") is not None:
        raise UndeclaredError(Cause.MESSAGE_FIELD, f"{where}.tools")


def _text_part(part: JsonValue, where: str, part_types: Collection[str]) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") in part_types:
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise UndeclaredError(Cause.NOT_TEXT, where)


def is_list(value: JsonValue) -> TypeGuard[Sequence[JsonValue]]:
    """Return whether ``value`` is a JSON array."""
    return isinstance(value, Sequence) and not isinstance(value, str)
