"""Requests, and what comes of them through either door: three ready engines, ``b`` is warm."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from e2e.router.samples import CHAT, DESTINATION, PAYLOAD, declared, undeclared
from e2e.router.stack import MODEL

ANY = frozenset("abc")
WARM = frozenset("b")


@dataclass(frozen=True)
class Case:
    """One request; ``outcome`` is None where the state of the pool decides it too."""

    name: str
    body: bytes
    match: str
    outcome: str | None = None
    engines: frozenset[str] = ANY
    status: int = 200
    path: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OverloadCase:
    """A request while all engines are saturated: what comes of it, and the match if it is shed."""

    name: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    status: int = 429
    match: str = "undeclared"


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


_ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in "promptprefix").encode()
_NAMED = {"x-promptprefix": "support-triage"}
_MESSAGES = _json(
    {
        "model": MODEL,
        "system": PAYLOAD.system,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [
            {
                "name": "lookup",
                "input_schema": {"type": "object", "b": 1.0, "a": 2},
            }
        ],
        "max_tokens": 1,
    }
)


def _command(name: str, body: bytes) -> Case:
    return Case(f"command: {name}", body, "command", "refused", frozenset(), 403)


CASES = (
    Case("declared", _json(declared()), "fingerprint", "warm", WARM),
    Case("declared, another API", _MESSAGES, "fingerprint", "warm", WARM, path="/v1/messages"),
    Case("named", _json(undeclared()), "header", "warm", WARM, headers=_NAMED),
    Case(
        "named, with a query",
        _json(undeclared()),
        "header",
        "warm",
        WARM,
        path=f"{CHAT}?timeout=1",
        headers=_NAMED,
    ),
    Case("named wrongly", _json(undeclared()), "undeclared", headers={"x-promptprefix": "other"}),
    Case(
        "named wrongly, but declared",
        _json(declared()),
        "fingerprint",
        "warm",
        WARM,
        headers={"x-promptprefix": "other"},
    ),
    Case("undeclared", _json(undeclared()), "undeclared"),
    Case("a model that nobody serves", _json({**undeclared(), "model": "x"}), "undeclared"),
    Case("malformed", b"{", "malformed"),
    Case("too long to be read", _json(undeclared("x" * 2_000_000)), "partial"),
    Case(
        "too long, named",
        _json(undeclared("x" * 2_000_000)),
        "header",
        "warm",
        WARM,
        headers=_NAMED,
    ),
    Case(
        "a forged destination outside the pool",
        _json(undeclared()),
        "undeclared",
        headers={DESTINATION: "127.0.0.1:1"},
    ),
    Case(
        "a forged destination does not outdo the warm engine",
        _json(declared()),
        "fingerprint",
        "warm",
        WARM,
        headers={DESTINATION: "127.0.0.1:1", f"{DESTINATION}-subset": "127.0.0.1:1"},
    ),
    _command("plain", b'{"vllm_xargs":{"promptprefix":"x"}}'),
    _command("escaped", b'{"vllm_xargs":{"%s":"x"}}' % _ESCAPED),
    _command("twice", b'{"vllm_xargs":{"promptprefix":"x"},"vllm_xargs":{}}'),
    _command("another field", b'{"kv_transfer_params":{"promptprefix":"x"}}'),
    _command("UTF-16", '{"vllm_xargs":{"promptprefix":"x"}}'.encode("utf-16")),
)

_OBJECTIVE = "x-gateway-inference-objective"
_BATCH = ((_OBJECTIVE, "batch"),)

OVERLOAD_CASES = (
    OverloadCase("no objective", (), status=200),
    OverloadCase("another objective", ((_OBJECTIVE, "chat"),), status=200),
    OverloadCase("an empty objective", ((_OBJECTIVE, ""),), status=200),
    OverloadCase("part of a name", ((_OBJECTIVE, "batches"),), status=200),
    OverloadCase("sheddable", _BATCH),
    OverloadCase("the other sheddable one", ((_OBJECTIVE.upper(), "bulk"),)),
    OverloadCase("declared", _BATCH, _json(declared()), match="fingerprint"),
    OverloadCase("named", (*_BATCH, *_NAMED.items()), match="header"),
    OverloadCase("another one beside it", (*_BATCH, (_OBJECTIVE, "chat"))),
    OverloadCase("another one before it", ((_OBJECTIVE, "chat"), *_BATCH)),
    OverloadCase("another one in the same line", ((_OBJECTIVE, "chat, batch"),)),
    OverloadCase(
        "too long to be read", _BATCH, _json(undeclared("x" * 2_000_000)), match="partial"
    ),
    OverloadCase("malformed", _BATCH, b"{", match="malformed"),
    OverloadCase("a command", _BATCH, b'{"vllm_xargs":{"promptprefix":"x"}}', 403, "command"),
    OverloadCase(
        "no model", _BATCH, _json({"messages": undeclared()["messages"]}), match="malformed"
    ),
    OverloadCase("no such model", _BATCH, _json({**undeclared(), "model": "x"})),
)
