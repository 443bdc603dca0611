"""Who asks: ServiceAccount tokens checked by the API server's TokenReview."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from promptprefix.wire import AUDIENCE
from promptprefix_operator.api_server import ApiError, ApiServer, Json
from promptprefix_operator.backoff import Pause
from promptprefix_operator.troubles import Troubles

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
CACHE_SECONDS = 60.0
REFUSAL_SECONDS = 10.0
MAX_CACHED = 2_048
MAX_TOKEN_CHARS = 16_384
_CONCURRENT_REVIEWS = 8
MAX_PAUSE_SECONDS = 5.0
"""While the API server is away a token is reviewed at least this often, for all that wait."""

T = TypeVar("T")

log = structlog.get_logger(__name__)

_USERNAME = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_POD_UID = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True)
class Caller:
    """A ServiceAccount, and the pod that its token is bound to, if it is bound to one."""

    namespace: str
    account: str
    pod_uid: str = ""


class Reviewer(Protocol):
    """Answers who a token belongs to."""

    async def review(self, token: str) -> Caller | None:
        """Return the caller; None if the token is not valid for us. Raises `ApiError`."""
        ...


class TokenReviewer:
    """Reviews tokens by the API server.

    Answers are kept under the token's hash for at most a minute and never beyond the token's
    expiry; refusals for ten seconds, apart, so that no flood of forged tokens displaces good ones.
    While the API
    server is away it is asked seldom. ``wall`` is Unix time, ``clock`` monotonic seconds.
    """

    def __init__(
        self,
        api: ApiServer,
        wall: Callable[[], float],
        clock: Callable[[], float],
        size: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._wall = wall
        self._pause = Pause(clock, MAX_PAUSE_SECONDS)
        self._troubles = Troubles(log, clock, "tokens not reviewed", "tokens are reviewed again")
        self._size = size
        self._callers: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._refusals: OrderedDict[bytes, float] = OrderedDict()
        self._slots = asyncio.Semaphore(_CONCURRENT_REVIEWS)

    async def review(self, token: str) -> Caller | None:
        """Return the caller; None if the token is not valid for us. Raises `ApiError`."""
        if not token or len(token) > MAX_TOKEN_CHARS or not token.isascii():
            return None
        key = hashlib.sha256(token.encode()).digest()
        known = self._callers.get(key)
        if known is not None and self._wall() < known[0]:
            self._callers.move_to_end(key)
            return known[1]
        if self._wall() < self._refusals.get(key, 0.0):
            return None
        async with self._slots:
            answer = await self._ask(token)
        caller = caller_of(answer)
        self._remember(key, token, caller)
        return caller

    async def _ask(self, token: str) -> Json:
        if self._pause.wait > 0:
            raise ApiError(0, "the API server could not review a token a moment ago")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            answer = await self._api.create(TOKEN_REVIEWS, body)
        except ApiError as error:
            if error.away:
                self._pause.failed()
            self._troubles.failed("", error)
            raise
        self._pause.worked()
        self._troubles.worked("")
        return answer

    def _remember(self, key: bytes, token: str, caller: Caller | None) -> None:
        now = self._wall()
        if caller is None:
            self._callers.pop(key, None)
            _put(self._refusals, key, now + REFUSAL_SECONDS)
        else:
            # Only what the API server vouches for is read: anybody can send any claims.
            expiry = expiry_of(token)
            until = now + CACHE_SECONDS
            _put(self._callers, key, (until if expiry is None else min(until, expiry), caller))
        self._size(len(self._callers) + len(self._refusals))


def _put(cache: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    """Keep ``value`` as the newest; what is oldest makes room."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > MAX_CACHED:
        cache.popitem(last=False)


def caller_of(review: Mapping[str, Any]) -> Caller | None:
    """Read an answered TokenReview; None unless it is a ServiceAccount's token for us."""
    status = review.get("status") or {}
    if status.get("authenticated") is not True or AUDIENCE not in (status.get("audiences") or ()):
        return None
    user = status.get("user") or {}
    found = _USERNAME.fullmatch(str(user.get("username") or ""))
    if found is None:
        return None
    extra = user.get("extra") or {}
    return Caller(found[1], found[2], _only(extra.get(_POD_UID)))


def _only(values: object) -> str:
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else ""


def expiry_of(token: str) -> float | None:
    """Return the expiry that a JWT claims, unchecked: good only for forgetting it earlier."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, int | float) else None
