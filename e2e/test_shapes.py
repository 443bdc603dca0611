"""Requests of every API on a live vLLM: what has a declared fingerprint hits the whole warmed head.

The heads are warmed from the declared text, as a sidecar does it. The requests go through the
official clients; the matcher reads the bytes that they send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.engine.server import (
    BLOCK_SIZE,
    SERVED_MODEL,
    EngineOptions,
    RunningEngine,
    running_engine,
)
from e2e.shapes_stand import (
    CHAT,
    DECLARED,
    MESSAGES,
    RESPONSES,
    SALT,
    SYSTEM,
    TEMPLATE,
    TOOL,
    USER,
    Json,
    Sent,
    Stand,
    chat,
    chat_tools,
    lead,
    message,
    response,
    tell,
    text,
)
from promptprefix_router.matching.matcher import MatchKind
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.rendering import Renderer

pytestmark = pytest.mark.timeout(600)


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
