"""What came of a question, for any door to translate."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from promptprefix.pin_command import XARG
from promptprefix_router.choosing.chooser import Outcome, SpillReason
from promptprefix_router.control.routes import Endpoint
from promptprefix_router.matching.matcher import MatchKind
from promptprefix_router.rewriting.rewriter import Rewriting

TOO_MANY_REQUESTS = 429
COMMAND = "command"
"""What stands for the kind of match of a request that is refused before it is matched."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer to the client in place of an engine's; ``body`` is JSON, OpenAI's error shape."""

    status: int
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """An endpoint and the next best ones in order; or none, for want of one; or a refusal.

    With a ``rewriting`` the body is to be changed on its way.
    """

    outcome: Outcome
    match: MatchKind | None = None
    endpoint: Endpoint | None = None
    fallbacks: tuple[Endpoint, ...] = ()
    refusal: Refusal | None = None
    rewriting: Rewriting | None = field(default=None, repr=False)
    reason: SpillReason | None = None

    @property
    def summary(self) -> str:
        """The decision in fixed words, as responses tell it."""
        told = f"{self.outcome};match={self.match or COMMAND}"
        return told if self.reason is None else f"{told};reason={self.reason}"

    @property
    def destination(self) -> str:
        """``ip:port`` of the endpoint, then of the next best ones behind commas; or empty."""
        if self.endpoint is None:
            return ""
        return ",".join([each.address for each in (self.endpoint, *self.fallbacks)])


def _refusal(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Refusal:
    kind = "invalid_request_error" if status < 500 else "service_unavailable_error"
    error = {
        "message": message,
        "type": "rate_limit_error" if status == TOO_MANY_REQUESTS else kind,
        "param": param,
        "code": code,
    }
    return Refusal(status, json.dumps({"error": error}).encode(), headers)


COMMAND_REFUSED = Decision(
    Outcome.REFUSED,
    refusal=_refusal(
        403,
        "engine_command_refused",
        f"Engine commands are not accepted from clients: remove {XARG!r} from vllm_xargs (and from "
        "kv_transfer_params, ec_transfer_params, extra_args).",
        f"vllm_xargs.{XARG}",
    ),
)

SEVERAL_TENANTS = Decision(
    Outcome.REFUSED,
    refusal=_refusal(400, "several_tenants", "The request names more than one tenant."),
)

SALT_UNKNOWN = Decision(
    Outcome.REFUSED,
    refusal=_refusal(
        503, "salt_unknown", "The cache salt of the request's tenant can't be read just now."
    ),
)
"""Envoy's fence around tenants' requests answers for the router's own door."""

SATURATED = tuple(
    _refusal(
        TOO_MANY_REQUESTS,
        "saturated",
        "All engines are busy, and this request may be refused then: send it again later.",
        headers=(("retry-after", str(seconds)),),
    )
    for seconds in (2, 3, 4, 5)
)
"""Given in turns, so that those who are refused together don't come back together."""

TOO_LONG_FOR_SALT = _refusal(
    413,
    "body_too_long",
    "The body is too long for the router to read, and must get the cache salt of its tenant.",
)
UNREADABLE_FOR_SALT = _refusal(
    400, "body_unreadable", "The body is no JSON object, and must get the cache salt of its tenant."
)
