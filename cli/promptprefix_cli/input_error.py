"""What is wrong with the input, in words that say where and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError


class InputError(ValueError):
    """Unusable input. ``document`` names the document, ``field`` the place in it (or nothing)."""

    def __init__(self, document: str, field: str, message: str) -> None:
        super().__init__(": ".join(part for part in (document, field, message) if part))


def validation_errors(document: str, error: ValidationError, at: str) -> Iterator[InputError]:
    """Yield one `InputError` for each complaint of a model that was read ``at`` a field."""
    for detail in error.errors(include_url=False, include_input=False):
        yield InputError(document, _path(at, detail["loc"]), _words(detail["type"], detail["msg"]))


def _path(at: str, loc: tuple[int | str, ...]) -> str:
    path = at
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _words(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "unknown field; remove it or check its spelling"
        case "missing":
            return "is missing; add it"
        case "value_error":
            return message.removeprefix("Value error, ")
    return message
