"""What a chat completion request declares: the same four values as a prefix.

The shape is OpenAI's chat completion request as vLLM reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from promptprefix.canonical import JsonValue
from promptprefix.fingerprint import fingerprint

SYSTEM_ROLES = ("system", "developer")

UNDECLARED_FIELDS = ("chat_template", "documents")
"""Fields that change the tokens in a way that no declared prefix does."""

SALT_FIELD = "cache_salt"
"""Field that changes the block hashes: equal texts share blocks only where it is equal too."""


class UndeclaredError(ValueError):
    """The request can't match a declared prefix.

    ``cause`` is a short word for counters; ``field`` says where in the body it stands.
    """

    def __init__(self, cause: str, field: str = "") -> None:
        super().__init__(f"{field}: {cause}" if field else cause)
        self.cause = cause
        self.field = field


@dataclass(frozen=True)
class ImmutablePart:
    """The part of a request that comes before the first user turn."""

    model: str
    system: str
    tools: Sequence[JsonValue]
    options: Mapping[str, JsonValue]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the request; raises `CanonicalError` without a canonical form."""
        return fingerprint(self.model, self.system, self.tools, self.options)


def chat_immutable_part(body: JsonValue) -> ImmutablePart:
    """Return the immutable part of a chat completion body; raise `UndeclaredError`."""
    if not isinstance(body, Mapping):
        raise UndeclaredError("malformed")
    for field in UNDECLARED_FIELDS:
        if body.get(field) is not None:
            raise UndeclaredError("own-template", field)
    model = body.get("model")
    if not isinstance(model, str):
        raise UndeclaredError("malformed", "model")
    messages = body.get("messages")
    if not _is_list(messages) or not messages:
        raise UndeclaredError("malformed", "messages")
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise UndeclaredError("malformed", "chat_template_kwargs")
    return ImmutablePart(model, _leading_system(messages[0]), _tools(body), options)


def _leading_system(message: JsonValue) -> str:
    if not isinstance(message, Mapping):
        raise UndeclaredError("malformed", "messages[0]")
    if message.get("role") not in SYSTEM_ROLES:
        return ""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not _is_list(content):
        raise UndeclaredError("malformed", "messages[0].content")
    return "\n".join(_text_part(part) for part in content)


def _text_part(part: JsonValue) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise UndeclaredError("not-text", "messages[0].content")


def _tools(body: Mapping[str, JsonValue]) -> Sequence[JsonValue]:
    tools = body.get("tools")
    if tools is None or body.get("tool_choice") == "none":
        return []
    if not _is_list(tools):
        raise UndeclaredError("malformed", "tools")
    return tools


def _is_list(value: JsonValue) -> TypeGuard[Sequence[JsonValue]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
