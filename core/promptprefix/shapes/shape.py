"""A shape: which fields of an API's requests decide, and what they declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from promptprefix.canonical import JsonValue
from promptprefix.request import Cause, ImmutablePart, Surroundings


class Turns(StrEnum):
    """What of the conversation decides."""

    FIRST = "first"
    """The first of its items; of a user turn only that it is one."""
    FIRST_OR_TEXT = "first-or-text"
    """The same; a text stands for one user turn."""
    ROLES = "roles"
    """Whether one of its items has the role ``system``."""


@dataclass(frozen=True)
class Shape:
    """How one API spells a request.

    A body with nothing but the model, the transfer parameters and the fields named here has the
    immutable part of the whole body, also where the value of a marker that is set is replaced by
    ``true`` and the conversation is reduced to what ``turns`` says.
    """

    path: str
    surroundings: Callable[[JsonValue], Surroundings]
    """Reads a body, also one without the ``system_fields``; raises `UndeclaredError`."""
    system: Callable[[JsonValue], str]
    """Returns the system text of a body with the ``system_fields``; raises `UndeclaredError`."""
    system_fields: tuple[str, ...]
    """Fields that decide the system text, and nothing else does."""
    conversation: str
    """Field with the turns."""
    turns: Turns
    values: tuple[str, ...]
    """Fields whose values decide."""
    markers: Mapping[str, Cause]
    """Fields that make a request undeclared when they are set: not null, not false."""

    def immutable_part(self, body: JsonValue) -> ImmutablePart:
        """Return the immutable part of a body; raise `UndeclaredError`."""
        around = self.surroundings(body)
        return ImmutablePart(around.model, self.system(body), around.tools, around.options)
