"""Requests and route tables that the router's tests share."""

from __future__ import annotations

import json
from typing import Any

from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import Revision, RouteEndpoint, RoutePrefix, RouteTable, TenantSalt
from promptprefix_router.choosing.chooser import Chooser
from promptprefix_router.choosing.cost import CostKnobs
from promptprefix_router.choosing.load import LoadLedger
from promptprefix_router.choosing.prompt_history import PromptHistory
from promptprefix_router.control.routes import Routes
from promptprefix_router.decision import Decision
from promptprefix_router.gateway.gateway_picker import GatewayPicker
from promptprefix_router.matching.matcher import Question
from promptprefix_router.picker import Picker

TENANT = "ml"
MODEL = "m"
DIGEST = "d1"
PAYLOAD = Payload(
    systemInstructions="You are a bot.",
    toolDefinitions='[{"type":"function","function":'
    '{"name":"f","parameters":{"type":"object","x":1.0}}}]',
)
SCHEMA = {"x": 1, "type": "object"}


def decided(picker: Picker | GatewayPicker, question: Question) -> Decision:
    """Return a decision for which nothing is waited."""
    decision = picker.consult(question)
    assert isinstance(decision, Decision)
    return decision


def chat(user: str = "hi", **changes: Any) -> bytes:
    """Return a chat completion with the declared prefix."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": PAYLOAD.system},
            {"role": "user", "content": user},
        ],
        "tools": [{"type": "function", "function": {"parameters": SCHEMA, "name": "f"}}],
    }
    return json.dumps({**body, **changes}).encode()


def message(user: str = "hi", **changes: Any) -> bytes:
    """Return a request of the Messages API with the declared prefix."""
    start, end = PAYLOAD.system[:4], PAYLOAD.system[4:]
    body: dict[str, Any] = {
        "model": MODEL,
        "system": [{"type": "text", "text": start}, {"type": "text", "text": end}],
        "messages": [{"role": "user", "content": user}],
        "tools": [{"input_schema": SCHEMA, "name": "f", "cache_control": {"type": "ephemeral"}}],
        "max_tokens": 1,
    }
    return json.dumps({**body, **changes}).encode()


def response(user: Any = "hi", **changes: Any) -> bytes:
    """Return a request of the Responses API with the declared prefix."""
    body: dict[str, Any] = {
        "model": MODEL,
        "instructions": PAYLOAD.system,
        "input": user,
        "tools": [{"type": "function", "parameters": SCHEMA, "name": "f", "strict": None}],
    }
    return json.dumps({**body, **changes}).encode()


def prefix(name: str = "p", **changes: Any) -> RoutePrefix:
    """Return the declared prefix."""
    fields = {
        "name": name,
        "tenant": TENANT,
        "model": MODEL,
        "fingerprint": payload_fingerprint(MODEL, PAYLOAD),
        "token_digests": (DIGEST,),
    }
    return RoutePrefix.model_validate({**fields, **changes})


def endpoint(last: int, **changes: Any) -> RouteEndpoint:
    """Return the ready endpoint 10.0.0.``last``:8000."""
    fields = {
        "pod_uid": f"uid-{last}",
        "pod": f"vllm-{last}",
        "namespace": TENANT,
        "address": f"10.0.0.{last}",
        "port": 8000,
        "models": (MODEL,),
        "ready": True,
    }
    return RouteEndpoint.model_validate({**fields, **changes})


def chooser(ledger: LoadLedger | None = None, **changes: Any) -> Chooser:
    """Return a chooser in the approximate mode whose clock stands still."""
    fields: dict[str, Any] = {
        "history": PromptHistory(10_000),
        "knobs": CostKnobs(),
        "clock": lambda: 0.0,
    }
    return Chooser(LoadLedger() if ledger is None else ledger, **{**fields, **changes})


def table(*endpoints: RouteEndpoint, prefixes: tuple[RoutePrefix, ...] = ()) -> RouteTable:
    """Return a route table."""
    revision = Revision(term=1, number=1)
    return RouteTable(revision=revision, prefixes=prefixes, endpoints=endpoints)


def routes(
    *endpoints: RouteEndpoint,
    prefixes: tuple[RoutePrefix, ...] = (),
    tenants: tuple[TenantSalt, ...] = (),
) -> Routes:
    """Return an indexed route table."""
    told = table(*endpoints, prefixes=prefixes).model_copy(update={"tenants": tenants})
    return Routes.from_table(told, TENANT)
