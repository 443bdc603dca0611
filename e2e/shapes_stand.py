"""Declared prefixes, requests of every API, and a live engine beside a matcher of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai

from e2e.engine.server import (
    SERVED_MODEL,
)
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import Revision, RoutePrefix, RouteTable
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.heads import HeadIndex
from promptprefix_router.matching.matcher import Match, Matcher, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.texts import KnownPrefix, Text
from promptprefix_sidecar.head import Head

Json = dict[str, Any]

TENANT = "ml"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TEMPLATE = """\
{#- Prints in its head whatever a request can hand to a template. -#}
{%- set lead = messages[0] if messages[0].role in ["system", "developer"] else {} -%}
{{- bos_token ~ "<|im_start|>system\n" -}}
{%- if reasoning_effort is defined -%}
  {{- "Effort: " ~ reasoning_effort ~ ", thinking: " ~ enable_thinking ~ "\n" -}}
{%- endif -%}
{%- if reasoning is defined -%}{{- "Reasoning: " ~ reasoning ~ "\n" -}}{%- endif -%}
{%- if documents -%}{{- documents | tojson ~ "\n" -}}{%- endif -%}
{%- if lead.name is defined -%}{{- lead.name ~ ":\n" -}}{%- endif -%}
{%- if tools is not none -%}{{- "Tools follow.\n" -}}{%- endif -%}
{%- if tools_first is not defined -%}{{- lead.content or "" -}}{%- endif -%}
{%- if tools is not none -%}
  {{- "\n# Tools\n" -}}
  {%- for tool in tools -%}{{- tool | tojson ~ "\n" -}}{%- endfor -%}
{%- endif -%}
{%- if tools_first is defined -%}{{- lead.content or "" -}}{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in (messages[1:] if lead else messages) -%}
  {%- if message.role == "system" -%}{{- raise_exception("system first") -}}{%- endif -%}
  {{- "<|im_start|>" ~ message.role ~ "\n" ~ message.content ~ "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
SALT = "a-salt-of-sixteen"
TEAM = "a-team"
OF_TEAM = {"salt": SALT, "owner": TEAM}
"""The router sets the salt; here requests have it already."""
SYSTEM = "\n".join(f"Rule {number}: answer in one word." for number in range(20))
SCHEMA = {"type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]}
TOOL: Json = {"name": "look_up", "description": "Finds a part.", "parameters": SCHEMA}
USER = {"role": "user", "content": "Where is it?"}


def chat_tools(*tools: Json) -> str:
    return json.dumps([{"type": "function", "function": tool} for tool in tools])


DECLARED = {
    "tools": Payload(systemInstructions=SYSTEM, toolDefinitions=chat_tools(TOOL)),
    "text": Payload(systemInstructions=SYSTEM),
    "options": Payload(systemInstructions=SYSTEM, chatTemplateOptions='{"reasoning":"high"}'),
    "effort": Payload(
        systemInstructions=SYSTEM,
        chatTemplateOptions='{"reasoning_effort":"low","enable_thinking":true}',
    ),
    "only-tools": Payload(
        toolDefinitions=chat_tools(*({**TOOL, "name": f"look_up_{n}"} for n in range(8)))
    ),
    "salted": Payload(systemInstructions=SYSTEM),
    "tools-first": Payload(
        systemInstructions=SYSTEM,
        toolDefinitions=chat_tools(TOOL),
        chatTemplateOptions='{"tools_first":true}',
    ),
}
"""Payloads by the name of their prefix."""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Sent:
    """The bytes of requests that clients sent, the last one last."""

    bodies: list[tuple[str, bytes]] = field(default_factory=list)

    def keep(self, request: Any) -> None:
        self.bodies.append((request.url.path, bytes(request.content)))


@dataclass
class Stand:
    """An engine, its clients, and a matcher that knows the declared prefixes."""

    http: httpx.Client
    url: str
    heads: Mapping[str, Head]

    def __post_init__(self) -> None:
        prefixes = tuple(
            RoutePrefix(
                id=name,
                name=name,
                tenant=TENANT,
                model=SERVED_MODEL,
                fingerprint=payload_fingerprint(SERVED_MODEL, payload),
                **(OF_TEAM if name == "salted" else {}),
                token_digests=(self.heads[name].digest,),
            )
            for name, payload in DECLARED.items()
        )
        table = RouteTable(revision=Revision(term=1, number=1), prefixes=prefixes, endpoints=())
        self.routes = Routes.from_table(table, TENANT)
        self.matcher = Matcher(FingerprintMemo(64))
        texts = {name: Text.of(SERVED_MODEL, payload) for name, payload in DECLARED.items()}
        known = (KnownPrefix(each, texts[each.name]).head for each in prefixes)
        self.matcher.use(HeadIndex(head for head in known if head is not None))
        self.openai = openai.OpenAI(api_key="none", base_url=f"{self.url}/v1", max_retries=0)
        self.anthropic = anthropic.Anthropic(api_key="none", base_url=self.url, max_retries=0)

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()

    def warm(self, name: str) -> Head:
        """Empty the cache and compute one head, as a sidecar does."""
        head = self.heads[name]
        self._post("/reset_prefix_cache", None)
        salt = {"cache_salt": SALT} if name == "salted" else {}
        body = {"model": SERVED_MODEL, "prompt": head.prompt_ids, "max_tokens": 1, **salt}
        self._post("/v1/completions", body)
        return head

    def send(self, path: str, body: Json) -> int:
        """Send a request as it is; return how many of its tokens were cached."""
        return cached_tokens(path, self._post(path, body)["usage"])

    def match(self, path: str, body: bytes, name: str = "") -> Match:
        tenant = TEAM if name == "salted" else ""
        return self.matcher.match(Question(path, body, tenant=tenant), self.routes)

    def _post(self, path: str, body: Json | None) -> Json:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        found: Json = answer.json() if answer.content else {}
        return found


def cached_tokens(path: str, usage: Json) -> int:
    if path == MESSAGES:
        return int(usage["cache_read_input_tokens"] or 0)
    details = usage["input_tokens_details" if path == RESPONSES else "prompt_tokens_details"]
    return int(details["cached_tokens"] or 0)


def chat(**changes: Any) -> Json:
    messages = [{"role": "system", "content": SYSTEM}, USER]
    tools = json.loads(chat_tools(TOOL))
    return _body({"messages": messages, "tools": tools, "max_tokens": 1}, changes)


def message(**changes: Any) -> Json:
    tools = [{"name": "look_up", "description": "Finds a part.", "input_schema": SCHEMA}]
    return _body({"system": SYSTEM, "messages": [USER], "tools": tools, "max_tokens": 1}, changes)


def response(**changes: Any) -> Json:
    tools = [{"type": "function", **TOOL}]
    body = {"instructions": SYSTEM, "input": "Where?", "tools": tools, "max_output_tokens": 1}
    return _body(body, changes)


def _body(body: Json, changes: Json) -> Json:
    """Return a body with fields replaced, or left out where the change is None."""
    whole = {"model": SERVED_MODEL, **body, **changes}
    return {key: value for key, value in whole.items() if value is not None}


def lead(content: Any, role: str = "system", **more: Any) -> list[Json]:
    return [{"role": role, "content": content, **more}, USER]


def text(value: str, kind: str = "text", **more: Any) -> Json:
    return {"type": kind, "text": value, **more}
