"""How requests of each API are spelled, and the immutable part that they declare.

Each module follows vLLM's own conversion of its API into a chat.
"""

from __future__ import annotations

from collections.abc import Mapping

from promptprefix.shapes.chat import CHAT
from promptprefix.shapes.messages import MESSAGES
from promptprefix.shapes.responses import RESPONSES
from promptprefix.shapes.shape import Shape

SHAPES: Mapping[str, Shape] = {shape.path: shape for shape in (CHAT, MESSAGES, RESPONSES)}
"""The APIs that declare, by path. The others render no chat: ``/v1/completions`` has no system
message and no tools.
"""
