"""The declared text of a prefix: four strings, kept byte for byte, and what they mean."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field

from promptprefix.canonical import CanonicalError, JsonValue, parse_json
from promptprefix.tokens import estimate_tokens

CONTENT_FIELDS = (
    "systemInstructions",
    "toolDefinitions",
    "defaultModeSpecs",
    "chatTemplateOptions",
)
"""Names of the content fields; in a ConfigMap or Secret they are the keys."""


class PayloadError(ValueError):
    """The declared text can't work.

    ``field`` names the content field, ``reason`` is a condition reason. The message may quote
    keys of the text; ``unquoted`` says the same without any of it.
    """

    def __init__(self, field: str, message: str, reason: str, unquoted: str = "") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.unquoted = f"{field}: {unquoted or message}"
        self.reason = reason


class Payload(BaseModel):
    """Raw declared content. Bytes decide cache hits, so nothing is normalised here.

    Its text is a secret: it never shows in ``repr`` or in errors.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        ignored_types=(cached_property,),
    )

    # The fields have the names that they have in the resource.
    systemInstructions: str = Field(default="", repr=False)  # noqa: N815
    toolDefinitions: str = Field(default="[]", repr=False)  # noqa: N815
    defaultModeSpecs: str = Field(default="", repr=False)  # noqa: N815
    chatTemplateOptions: str = Field(default="{}", repr=False)  # noqa: N815

    @classmethod
    def from_data(cls, data: Mapping[str, str]) -> Payload:
        """Return the text in a ConfigMap's ``data``; keys that are no content field are left out.

        Raises `PayloadError` (InvalidContent) if no key is one.
        """
        known = {key: data[key] for key in CONTENT_FIELDS if key in data}
        if not known:
            message = f"none of the keys {', '.join(CONTENT_FIELDS)} is in the data"
            raise PayloadError("data", message, "InvalidContent")
        return cls(**known)

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Payload:
        """Return the text in a Secret's ``data``, whose values are base64.

        Raises `PayloadError` (InvalidContent) that names the key, never its value.
        """
        encoded = {key: data[key] for key in CONTENT_FIELDS if key in data}
        return cls.from_data({key: _decoded(key, value) for key, value in encoded.items()})

    @property
    def system(self) -> str:
        """Text of the system message: the instructions, then a blank line and the mode specs."""
        if not self.defaultModeSpecs:
            return self.systemInstructions
        return f"{self.systemInstructions}\n\n{self.defaultModeSpecs}"

    @cached_property
    def tools(self) -> Sequence[JsonValue]:
        """The tools array, in its order. Raises `PayloadError` (InvalidTools)."""
        try:
            value = parse_json(self.toolDefinitions) if self.toolDefinitions.strip() else []
        except CanonicalError as error:
            raise _unparsed("toolDefinitions", "InvalidTools", error) from error
        if not isinstance(value, list):
            raise PayloadError("toolDefinitions", "must be a JSON array of tools", "InvalidTools")
        for index, tool in enumerate(value):
            _check_tool(index, tool)
        return value

    @cached_property
    def options(self) -> Mapping[str, JsonValue]:
        """Arguments of the chat template. Raises `PayloadError` (InvalidContent)."""
        try:
            value = parse_json(self.chatTemplateOptions) if self.chatTemplateOptions.strip() else {}
        except CanonicalError as error:
            raise _unparsed("chatTemplateOptions", "InvalidContent", error) from error
        if not isinstance(value, dict):
            raise PayloadError("chatTemplateOptions", "must be a JSON object", "InvalidContent")
        return value

    @cached_property
    def digest(self) -> str:
        """Content digest: SHA-256 (hex) of the four raw strings as one JSON object."""
        raw = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(raw.encode()).hexdigest()

    @property
    def estimated_tokens(self) -> int:
        """Rough count of its tokens, for places without a tokenizer."""
        return estimate_tokens(self.system) + estimate_tokens(self.toolDefinitions)

    @property
    def empty(self) -> bool:
        """Whether neither a system text nor a tool is declared."""
        return not self.system and not self.tools


def _unparsed(field: str, reason: str, error: CanonicalError) -> PayloadError:
    return PayloadError(field, str(error), reason, error.unquoted)


def _decoded(key: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start})"
        raise PayloadError(key, message, "InvalidContent") from None
    except ValueError:
        raise PayloadError(key, "is not base64", "InvalidContent") from None


def _check_tool(index: int, tool: JsonValue) -> None:
    where = f"tool {index}"
    if not isinstance(tool, dict):
        raise PayloadError("toolDefinitions", f"{where} must be an object", "InvalidTools")
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        message = f'{where} must be {{"type": "function", "function": {{…}}}}'
        raise PayloadError("toolDefinitions", message, "InvalidTools")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise PayloadError("toolDefinitions", f"{where} has no function.name", "InvalidTools")
