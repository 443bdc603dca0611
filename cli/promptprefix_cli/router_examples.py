"""The near misses that a router saw last, as it serves them."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptprefix_cli.input_error import InputError

PATH = "/near-misses"
TIMEOUT_S = 10.0
MAX_BYTES = 1024 * 1024


class SeenNearMiss(BaseModel):
    """One request that came near a prefix."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: str
    prefix: str
    api: str
    cause: str
    field: str
    offset: int
    tokensLost: int  # noqa: N815 - as the router spells it


class SeenByRouter(BaseModel):
    """What a router serves: examples, the latest first, and how many were undeclared by cause."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    nearMisses: tuple[SeenNearMiss, ...] = Field(default=())  # noqa: N815
    undeclared: dict[str, int] = Field(default_factory=dict)


def read_router(url: str) -> SeenByRouter:
    """Return what the router with this address of its metrics port saw. Raises `InputError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(url, "--from", "must be http://HOST:PORT of a router's metrics (9090)")
    asked = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:  # noqa: S310 - http(s) only
            body = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(
            url, "--from", f"answered {error.code}: is {PATH} served there?"
        ) from error
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise InputError(url, "--from", f"can't be read: {error}") from error
    try:
        return SeenByRouter.model_validate_json(body)
    except ValidationError as error:
        message = f"is no answer of a router: use the picker's metrics port and {PATH}"
        raise InputError(url, "--from", message) from error
