"""What an engine is asked for a prompt's tokens, and how its answer is read. No I/O.

vLLM tokenizes chats and completions at ``/tokenize``. What it would render otherwise there, or not
at all, is not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

PATH = "/tokenize"
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

_NONE = b"null"
_ABSENT = msgspec.Raw()


class Fallback(StrEnum):
    """Why a request's tokens are not known, in fixed words."""

    API = "api"
    """Engines don't tokenize this API."""
    PARTIAL = "partial"
    """The body is too long for the router to read."""
    UNSUPPORTED = "unsupported"
    """Engines would tokenize it otherwise than they compute it."""
    NO_FEED = "no-feed"
    """No pod of the model tells of its blocks."""
    BUSY = "busy"
    """As many requests wait for their tokens as may."""
    PAUSED = "paused"
    """The engines failed to answer in time a moment ago."""
    LONG = "long"
    """No answer in time, and the prompt is long."""
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """The engine refuses the request, as it will when it gets it."""
    INVALID = "invalid"
    """The engine's answer is another error, or can't be read."""


class FallbackError(Exception):
    """A request's tokens can't be known."""

    def __init__(self, reason: Fallback) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A body for ``/tokenize``; or ``tokens``, if the request itself has them."""

    body: bytes = field(default=b"", repr=False)
    tokens: Sequence[int] | None = field(default=None, repr=False)


class _Part(msgspec.Struct):
    type: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part | str] | None = None


class _Chat(msgspec.Struct):
    messages: list[_Message]


class _Tokens(msgspec.Struct):
    tokens: list[int]


_MESSAGES = msgspec.json.Decoder(_Chat)
_ANSWER = msgspec.json.Decoder(_Tokens)
_IDS = msgspec.json.Decoder(list[int])

_PASSED = (
    "model",
    "messages",
    "prompt",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
)
"""Fields that ``/tokenize`` reads as the API does."""

_OTHER = (
    "chat_template",
    "documents",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "echo",
    "suffix",
    "prompt_embeds",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
"""Fields that change the tokens, or what is reused of them, in ways that it doesn't know."""

_SPECIAL = ("reasoning_effort", "tool_choice", "kv_transfer_params")
_FIELDS = msgspec.defstruct(
    "Fields", [(name, msgspec.Raw, _ABSENT) for name in (*_PASSED, *_OTHER, *_SPECIAL)]
)
_DECODER = msgspec.json.Decoder(_FIELDS)
_TEXT_PARTS = ("text", "refusal")
_OFF = (b"", _NONE, b"false")


def token_request(path: str, body: bytes) -> TokenRequest:
    """Return what is asked for a whole body of an API; raise `FallbackError`."""
    if path not in (CHAT_PATH, COMPLETIONS_PATH):
        raise FallbackError(Fallback.API)
    try:
        fields: Any = _DECODER.decode(body)
        said = {name: bytes(getattr(fields, name)) for name in _FIELDS.__struct_fields__}
        if path == COMPLETIONS_PATH:
            return _completion(said)
        return _chat(said, body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise FallbackError(Fallback.UNSUPPORTED) from error


def read_tokens(answer: bytes) -> Sequence[int]:
    """Return the token ids of an answer; raise `FallbackError`."""
    try:
        return _ANSWER.decode(answer).tokens
    except (msgspec.MsgspecError, ValueError) as error:
        raise FallbackError(Fallback.INVALID) from error


def _check(said: dict[str, bytes]) -> None:
    if any(said[name] not in _OFF for name in (*_OTHER, "kv_transfer_params")):
        raise FallbackError(Fallback.UNSUPPORTED)


def _completion(said: dict[str, bytes]) -> TokenRequest:
    _check(said)
    prompt = said["prompt"]
    if prompt.startswith(b'"'):
        return TokenRequest(_object(said, ("model", "prompt", "add_special_tokens")))
    # Several prompts are several requests to an engine.
    return TokenRequest(tokens=_IDS.decode(prompt))


def _chat(said: dict[str, bytes], body: bytes) -> TokenRequest:
    _check(said)
    if said["tools"] not in (b"", _NONE) and said["tool_choice"] == b'"none"':
        # Whether the tools are printed then is the engine's setting.
        raise FallbackError(Fallback.UNSUPPORTED)
    for message in _MESSAGES.decode(body).messages:
        if isinstance(message.content, list) and not all(map(_is_text, message.content)):
            raise FallbackError(Fallback.UNSUPPORTED)
    if said["reasoning_effort"] not in (b"", _NONE):
        said["chat_template_kwargs"] = _with_effort(said)
    return TokenRequest(_object(said, [name for name in _PASSED if name != "prompt"]))


def _is_text(part: _Part | str) -> bool:
    return isinstance(part, str) or part.type in _TEXT_PARTS


def _with_effort(said: dict[str, bytes]) -> bytes:
    """Return the template's options with the effort, as vLLM puts it there."""
    effort = msgspec.json.decode(said["reasoning_effort"], type=str)
    raw = said["chat_template_kwargs"]
    options = {} if raw in (b"", _NONE) else msgspec.json.decode(raw, type=dict[str, Any])
    options = {"enable_thinking": effort != "none", **options, "reasoning_effort": effort}
    return msgspec.json.encode(options)


def _object(said: dict[str, bytes], names: Sequence[str]) -> bytes:
    members = [b'"%s":%s' % (name.encode(), said[name]) for name in names if said[name]]
    return b"{%s}" % b",".join(members)
