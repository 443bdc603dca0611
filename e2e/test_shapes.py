"""Requests of every API on a live vLLM: what has a declared fingerprint hits the whole warmed head.

The heads are warmed from the declared text, as a sidecar does it. The requests go through the
official clients; the matcher reads the bytes that they send.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from e2e.engine.server import (
    BLOCK_SIZE,
    SERVED_MODEL,
    EngineOptions,
    RunningEngine,
    running_engine,
)
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import Revision, RoutePrefix, RouteTable
from promptprefix_router.control.routes import Routes
from promptprefix_router.matching.heads import HeadIndex
from promptprefix_router.matching.matcher import Match, Matcher, MatchKind, Question
from promptprefix_router.matching.memo import FingerprintMemo
from promptprefix_router.matching.texts import KnownPrefix, Text
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.rendering import Renderer

pytestmark = pytest.mark.timeout(600)

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


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    template: Path = tmp_path_factory.mktemp("template") / "talkative.jinja"
    template.write_text(TEMPLATE)
    options = EngineOptions(chat_template=str(template))
    with running_engine(tell, options, {"VLLM_SERVER_DEV_MODE": "1"}) as engine:
        yield engine


@pytest.fixture(scope="module")
def stand(engine: RunningEngine) -> Iterator[Stand]:
    async def heads() -> dict[str, Head]:
        async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
            renderer = Renderer(EngineApi(client))
            return {
                name: await renderer.head(SERVED_MODEL, payload, BLOCK_SIZE)
                for name, payload in DECLARED.items()
            }

    with httpx.Client(base_url=engine.url, timeout=60) as http:
        stand = Stand(http, engine.url, asyncio.run(heads()))
        yield stand
        stand.close()


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


EIGHT = [{**TOOL, "name": f"look_up_{n}"} for n in range(8)]
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
BLOCKS = [text("x-anthropic-billing-header: cch=1"), text(SYSTEM[:99]), text(SYSTEM[99:])]
ANTHROPIC_TOOL = message()["tools"][0]
TWO_PARTS = [text(part) for part in SYSTEM.split("\n", 1)]

FULL: list[tuple[str, str, Json]] = [
    ("tools", CHAT, chat()),
    ("tools", CHAT, chat(messages=lead(TWO_PARTS))),
    ("tools", CHAT, chat(messages=lead(SYSTEM, "developer"))),
    ("tools", CHAT, chat(messages=[*lead(SYSTEM), lead("Sure.", "assistant")[0], USER])),
    ("tools", CHAT, chat(unknown={"field": 1}, user="me", kv_transfer_params={"other": 1})),
    ("tools", CHAT, chat(messages=[*lead(SYSTEM), lead("It", "assistant")[0]],
                         continue_final_message=True, add_generation_prompt=False)),
    ("text", CHAT, chat(tool_choice="none")),
    ("text", CHAT, chat(tools=None)),
    ("options", CHAT, chat(tools=None, chat_template_kwargs={"reasoning": "high"})),
    ("effort", CHAT, chat(tools=None, reasoning_effort="low")),
    ("only-tools", CHAT, chat(messages=[USER], tools=json.loads(chat_tools(*EIGHT)))),
    ("salted", CHAT, chat(tools=None, cache_salt=SALT)),
    ("tools", MESSAGES, message()),
    ("tools", MESSAGES, message(system=BLOCKS)),
    ("tools", MESSAGES, message(tools=[{**ANTHROPIC_TOOL, "type": "custom", **EPHEMERAL}])),
    ("tools", MESSAGES, message(tool_choice={"type": "auto"}, metadata={"user_id": "me"})),
    ("text", MESSAGES, message(tool_choice={"type": "none"})),
    ("text", MESSAGES, message(tools=None)),
    ("options", MESSAGES, message(tools=None, chat_template_kwargs={"reasoning": "high"})),
    ("effort", MESSAGES, message(tools=None, output_config={"effort": "low"})),
    ("only-tools", MESSAGES, message(system=None, tools=[
        {**ANTHROPIC_TOOL, "name": tool["name"]} for tool in EIGHT])),
    ("salted", MESSAGES, message(tools=None, cache_salt=SALT)),
    ("tools", RESPONSES, response()),
    ("tools", RESPONSES, response(input=[USER])),
    ("tools", RESPONSES, response(instructions=None, input=lead(SYSTEM, type="message"))),
    ("tools", RESPONSES, response(instructions=None, input=lead(SYSTEM, "developer"))),
    ("tools", RESPONSES, response(instructions=None, input=lead(
        [text(part["text"], "input_text") for part in TWO_PARTS]))),
    ("tools", RESPONSES, response(tools=[{"type": "function", **TOOL, "defer_loading": None}])),
    ("text", RESPONSES, response(tool_choice="none")),
    ("text", RESPONSES, response(tools=[])),
    ("options", RESPONSES, response(tools=None, chat_template_kwargs={"reasoning": "high"})),
    ("effort", RESPONSES, response(tools=None, reasoning={"effort": "low"})),
    ("only-tools", RESPONSES, response(instructions=None, tools=[
        {"type": "function", **tool} for tool in EIGHT])),
    ("salted", RESPONSES, response(tools=None, cache_salt=SALT)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "body"), FULL)
def test_a_declared_request_hits_the_whole_head(
    stand: Stand, name: str, path: str, body: Json
) -> None:
    match = stand.match(path, json.dumps(body).encode(), name)
    assert (match.kind, match.ids) == (MatchKind.FINGERPRINT, (name,))
    assert match.salt == body.get("cache_salt", "")
    head = stand.warm(name)
    assert match.digests == {head.digest}
    assert stand.send(path, body) == head.tokens


NOON = f"{SYSTEM}\nIt is noon on Friday."
FIRST = {"tools_first": True}
TAILED: list[tuple[str, str, Json]] = [
    ("text", CHAT, chat(tools=None, messages=lead(NOON))),
    ("text", CHAT, chat(tools=None, messages=lead([text(SYSTEM), text("It is noon.")]))),
    ("text", MESSAGES, message(tools=None, system=[text(SYSTEM), text(" It is noon.")])),
    ("text", RESPONSES, response(tools=None, instructions=NOON)),
    ("salted", CHAT, chat(tools=None, messages=lead(NOON), cache_salt=SALT)),
    ("options", MESSAGES, message(tools=None, system=NOON,
                                  chat_template_kwargs={"reasoning": "high"})),
    ("tools-first", CHAT, chat(messages=lead(NOON), chat_template_kwargs=FIRST)),
    ("tools-first", MESSAGES, message(system=NOON, chat_template_kwargs=FIRST)),
    ("tools-first", RESPONSES, response(instructions=NOON, chat_template_kwargs=FIRST)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "body"), TAILED)
def test_a_text_with_a_tail_hits_all_but_the_last_blocks_of_its_head(
    stand: Stand, name: str, path: str, body: Json
) -> None:
    match = stand.match(path, json.dumps(body).encode(), name)
    assert (match.kind, match.ids) == (MatchKind.HEAD, (name,))
    head = stand.warm(name)
    cached = stand.send(path, body)
    tell(f"{name} {path}: {cached} of {head.tokens} tokens of the declared head")
    assert head.tokens - 2 * BLOCK_SIZE <= cached <= head.tokens
    assert cached > 0


def test_tools_after_the_text_are_not_reused_behind_a_tail(stand: Stand) -> None:
    body = chat(messages=lead(NOON))
    assert stand.match(CHAT, json.dumps(body).encode()).ids == ("tools",)
    whole, text_alone = stand.warm("tools"), stand.heads["text"]
    cached = stand.send(CHAT, body)
    tell(f"tools after the text: {cached} of {whole.tokens} tokens of the declared head")
    assert abs(cached - text_alone.tokens) <= 2 * BLOCK_SIZE
    assert cached < whole.tokens


OTHER = {**TOOL, "description": "Finds another part."}
INLINE = [USER, {"role": "system", "content": "Be brief."}, USER]
OWN_TOKENS = {"kv_transfer_params": {"prompt_token_ids": [5] * 200}}
MISSES: list[tuple[str, str, Json]] = [
    ("tools", CHAT, chat(tools=json.loads(chat_tools(OTHER)))),
    ("tools", CHAT, chat(messages=lead(SYSTEM, name="desk"))),
    ("tools", CHAT, chat(reasoning_effort="low")),
    ("tools", CHAT, chat(documents=[{"text": "a document"}])),
    ("tools", CHAT, chat(truncate_prompt_tokens=60)),
    ("tools", CHAT, chat(prompt_logprobs=0)),
    ("tools", CHAT, chat(echo=True)),
    ("tools", CHAT, chat(**OWN_TOKENS)),
    ("tools", CHAT, chat(chat_template_kwargs={"reasoning": "high"})),
    ("tools", MESSAGES, message(tools=[{**ANTHROPIC_TOOL, "description": "Another."}])),
    ("text", MESSAGES, message(tools=[])),
    ("tools", MESSAGES, message(messages=INLINE)),
    ("tools", MESSAGES, message(thinking={"type": "disabled"})),
    ("tools", MESSAGES, message(output_config={"effort": "low"})),
    ("tools", MESSAGES, message(**OWN_TOKENS)),
    ("tools", MESSAGES, message(chat_template_kwargs={"reasoning": "high"})),
    ("tools", RESPONSES, response(tools=[{"type": "function", **OTHER}])),
    ("tools", RESPONSES, response(reasoning={"effort": "low"})),
    ("tools", RESPONSES, response(**OWN_TOKENS)),
    ("tools", RESPONSES, response(chat_template_kwargs={"reasoning": "high"})),
]


@pytest.mark.parametrize(("name", "path", "body"), MISSES)
def test_what_misses_is_undeclared(stand: Stand, name: str, path: str, body: Json) -> None:
    assert stand.match(path, json.dumps(body).encode()).kind == MatchKind.UNDECLARED
    head = stand.warm(name)
    assert stand.send(path, body) < head.tokens


def openai_chat(stand: Stand, **more: Any) -> int:
    done = stand.openai.chat.completions.create(**chat(), **more)
    return int(done.usage.prompt_tokens_details.cached_tokens)


def openai_stream(stand: Stand, **more: Any) -> int:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = stand.openai.chat.completions.create(**chat(), **options, **more)
    return int(last.usage.prompt_tokens_details.cached_tokens)


def openai_responses(stand: Stand, **more: Any) -> int:
    done = stand.openai.responses.create(**response(), **more)
    return int(done.usage.input_tokens_details.cached_tokens)


def anthropic_messages(stand: Stand, **more: Any) -> int:
    return int(stand.anthropic.messages.create(**message(), **more).usage.cache_read_input_tokens)


def anthropic_beta(stand: Stand, **more: Any) -> int:
    """Its path has a query."""
    done = stand.anthropic.beta.messages.create(**message(), betas=["tools-2024-04-04"], **more)
    return int(done.usage.cache_read_input_tokens)


def anthropic_stream(stand: Stand, **more: Any) -> int:
    with stand.anthropic.messages.stream(**message(), **more) as stream:
        return int(stream.get_final_message().usage.cache_read_input_tokens)


CLIENTS = (
    openai_chat,
    openai_stream,
    openai_responses,
    anthropic_messages,
    anthropic_beta,
    anthropic_stream,
)


@pytest.mark.parametrize("ask", CLIENTS)
def test_official_clients(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., int]
) -> None:
    sent = Sent()
    for client in (stand.openai, stand.anthropic):
        hooks = {"request": [sent.keep], "response": []}
        monkeypatch.setattr(client._client, "event_hooks", hooks)
    head = stand.warm("tools")
    assert ask(stand, extra_body={"unknown": "kept"}) == head.tokens
    ((path, body),) = sent.bodies
    assert stand.match(path, body).ids == ("tools",)
