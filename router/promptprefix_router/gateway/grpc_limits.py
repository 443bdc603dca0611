"""What the connections of one server have in common."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol


class Ending(Protocol):
    """A connection, as far as it can be ended."""

    def leave(self) -> None:
        """Ask the peer to open no more calls; the connection ends with the last one."""

    def cut(self) -> None:
        """End all calls and the connection."""


@dataclass
class Limits:
    """How much may be at a time, and how much is. Incomplete messages count as ``held``."""

    calls: int
    message_bytes: int
    held_bytes: int
    open: int = 0
    held: int = 0
    connections: set[Ending] = field(default_factory=set)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a connection has ended."""
