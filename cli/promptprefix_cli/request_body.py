"""Request bodies as input: of which API they are, and where their fields stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from promptprefix.request import Cause
from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape

_LEAVE_OUT = "makes the request match no declared prefix; leave it out"


def shape_of(body: Mapping[Any, Any]) -> Shape:
    """Return the API of a body by fields that no other has; without any it is a chat completion."""
    if "input" in body or "instructions" in body:
        return RESPONSES
    tools = body.get("tools")
    first = tools[0] if isinstance(tools, list) and tools else None
    if "system" in body or (isinstance(first, Mapping) and "input_schema" in first):
        return MESSAGES
    return CHAT


def places(shape: Shape, body: Mapping[Any, Any]) -> Mapping[str, str]:
    """Return where in a body the content fields of a prefix stand."""
    if shape is CHAT:
        system = "messages[0].content"
    elif shape is MESSAGES:
        system = "system"
    else:
        system = "instructions" if body.get("instructions") else "input[0].content"
    return {
        "systemInstructions": system,
        "defaultModeSpecs": system,
        "toolDefinitions": "tools",
        "chatTemplateOptions": "chat_template_kwargs",
    }


def remedy(cause: Cause, shape: Shape) -> str:
    """Say what is wrong with a field, and the fix."""
    if cause is Cause.MALFORMED:
        return f"is missing or of the wrong type; send what {shape.path} takes"
    if cause is Cause.NOT_TEXT:
        return "has parts that are no text; only text can be declared"
    return _LEAVE_OUT
