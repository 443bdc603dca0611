"""What a request declares: the same four values as a prefix, or why it can't match one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from promptprefix.canonical import JsonValue
from promptprefix.fingerprint import Frame, fingerprint

SALT_FIELD = "cache_salt"
"""Field that changes the block hashes: equal texts share blocks only where it is equal too."""


class Cause(StrEnum):
    """Why a request can't match a declared prefix."""

    MALFORMED = "malformed"
    NOT_TEXT = "not-text"
    """Its system message has parts that are no text."""
    OWN_TEMPLATE = "own-template"
    """It brings a chat template or documents, which no declared prefix does."""
    REASONING = "reasoning"
    """It switches thinking off; what vLLM tells the template then depends on the template."""
    SPECIAL_TOKENS = "special-tokens"
    """The tokenizer puts tokens of its own before the template's."""
    TRUNCATED = "truncated"
    """The engine may cut the prompt's beginning."""
    OWN_TOKENS = "own-tokens"
    """It brings the prompt's tokens; the engine doesn't read its text."""
    SKIPS_CACHE = "skips-cache"
    """It asks for the prompt's log probabilities, for which the engine reads no cached block."""
    MESSAGE_FIELD = "message-field"
    """Its system message has fields beside the text that a template may print."""
    STORED_CONTEXT = "stored-context"
    """A part of the conversation is not in the request."""
    NOT_A_FUNCTION = "not-a-function"
    """It has a tool that is no function."""
    EMPTY_TOOLS = "empty-tools"
    """Its list of tools is empty; templates tell that from no list."""
    INLINE_SYSTEM = "inline-system"
    """Among the turns are system messages, which may change the leading one and the tools."""


class UndeclaredError(ValueError):
    """The request can't match a declared prefix; ``field`` says where in the body it stands."""

    def __init__(self, cause: Cause, field: str = "") -> None:
        super().__init__(f"{field}: {cause}" if field else str(cause))
        self.cause = cause
        self.field = field


@dataclass(frozen=True)
class Surroundings:
    """The immutable part of a request but its system text."""

    model: str
    tools: Sequence[JsonValue]
    options: Mapping[str, JsonValue]

    @property
    def frame(self) -> Frame:
        """Their canonical bytes; raises `CanonicalError` without a canonical form."""
        return Frame.of(self.model, self.tools, self.options)


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
