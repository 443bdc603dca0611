"""JSON Patch (RFC 6902) operations that only add."""

from __future__ import annotations

from collections.abc import Sequence

from promptprefix_operator.injection.pod import JsonObject

Operation = JsonObject


def pointer(*parts: str | int) -> str:
    """Return the JSON Pointer (RFC 6901) of a place."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return "".join(f"/{part}" for part in escaped)


def set_member(path: str, value: object) -> Operation:
    """Set an object's member, also one that is there; before a list's item, insert."""
    return {"op": "add", "path": path, "value": value}


def append(path: str, present: int, items: Sequence[object]) -> list[Operation]:
    """Append ``items`` to a list of ``present`` items; an empty one may be missing."""
    if not items:
        return []
    if not present:
        return [set_member(path, list(items))]
    return [set_member(f"{path}/-", item) for item in items]


def set_members(path: str, present: int, members: dict[str, str]) -> list[Operation]:
    """Set members of an object with ``present`` members; an empty one may be missing."""
    if not members:
        return []
    if not present:
        return [set_member(path, dict(members))]
    return [set_member(path + pointer(name), value) for name, value in members.items()]
