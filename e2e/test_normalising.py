"""Requests in another spelling on a live vLLM behind the real router: a miss becomes a full hit.

The head is warmed from the declared text, as a sidecar does it. Each request is sent twice: to the
engine as it is, and through Envoy and the picker.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from e2e.engine.server import BLOCK_SIZE, SERVED_MODEL, EngineOptions, running_engine
from e2e.router.fake_control import FakeControl
from e2e.router.stack import TENANT, TENANT_HEADER, RouterStack, public_folder
from e2e.shapes_stand import CHAT, MESSAGES, RESPONSES, TEMPLATE, cached_tokens
from e2e.waiting import until
from promptprefix.fingerprint import payload_fingerprint
from promptprefix.payload import Payload
from promptprefix.wire import RouteEndpoint, RoutePrefix
from promptprefix_sidecar.engine_api import EngineApi
from promptprefix_sidecar.head import Head
from promptprefix_sidecar.rendering import Renderer

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

Json = dict[str, Any]

PAYLOAD = Payload(
    systemInstructions="Für Rückfragen gilt:\n"
    + "\n".join(f"Regel {number}: knapp antworten." for number in range(20)),
    toolDefinitions='[{"type":"function","function":{"name":"look_up","description":"Sucht ein '
    'Stück.","parameters":{"type":"object","properties":{"b":{"type":"string"},'
    '"a":{"type":"integer","minimum":1.0}},"required":["b"]}}}]',
)
NFD = unicodedata.normalize("NFD", PAYLOAD.system)
CRLF = PAYLOAD.system.replace("\n", "\r\n")
SALT, TEAM = "a-salt-of-sixteen", "a-team"
USER = {"role": "user", "content": "Wo?"}
FUNCTION: Json = json.loads(PAYLOAD.toolDefinitions)[0]["function"]
PARAMETERS: Json = {
    "required": ["b"],
    "properties": {"a": {"minimum": 1, "type": "integer"}, "b": {"type": "string"}},
    "type": "object",
}
"""The declared ones with their keys in another order and a number in another spelling."""


def chat(text: str, parameters: Json) -> Json:
    tool = {"type": "function", "function": {**FUNCTION, "parameters": parameters}}
    lead = {"role": "system", "content": text}
    return {"messages": [lead, USER], "tools": [tool], "max_tokens": 1}


def message(text: str, parameters: Json) -> Json:
    tool = {k: v for k, v in FUNCTION.items() if k != "parameters"} | {"input_schema": parameters}
    return {"system": text, "messages": [USER], "tools": [tool], "max_tokens": 1}


def response(text: str, parameters: Json) -> Json:
    tool = {"type": "function", **FUNCTION, "parameters": parameters}
    return {"instructions": text, "input": "Wo?", "tools": [tool], "max_output_tokens": 1}


class Stand:
    """The engine, the router before it, and the declared text's head."""

    def __init__(self, engine: httpx.AsyncClient, router: RouterStack, head: Head) -> None:
        self.engine = engine
        self.router = router
        self.head = head

    async def warm(self, **more: str) -> None:
        """Empty the cache and compute the head."""
        await self._post(self.engine, "/reset_prefix_cache", None)
        body = {"model": SERVED_MODEL, "prompt": self.head.prompt_ids, "max_tokens": 1, **more}
        await self._post(self.engine, "/v1/completions", body)

    async def direct(self, path: str, body: Json) -> int:
        """Send a request to the engine; return how many of its tokens were cached."""
        return cached_tokens(path, (await self._post(self.engine, path, body))["usage"])

    async def routed(self, path: str, body: Json, **headers: str) -> int:
        """Send it through the router."""
        found = await self._post(self.router.client, f"{self.router.url}{path}", body, headers)
        return cached_tokens(path, found["usage"])

    async def rewrites(self) -> float:
        return await self.router.metric("promptprefix_router_rewrites_total", result="rewritten")

    async def _post(
        self, client: httpx.AsyncClient, url: str, body: Json | None, headers: Any = None
    ) -> Json:
        answer = await client.post(url, json=body, headers=headers)
        assert answer.is_success, answer.text
        found: Json = answer.json() if answer.content else {}
        return found


def declared(**fields: Any) -> RoutePrefix:
    return RoutePrefix(
        tenant=TENANT,
        model=SERVED_MODEL,
        fingerprint=payload_fingerprint(SERVED_MODEL, PAYLOAD),
        content_digest=PAYLOAD.digest,
        normalize=True,
        **fields,
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("template") / "talkative.jinja"
    place.write_text(TEMPLATE)
    return place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(template: Path) -> AsyncIterator[Stand]:
    options = EngineOptions(chat_template=str(template))
    async with AsyncExitStack() as closing:
        running = closing.enter_context(
            running_engine(tell, options, {"VLLM_SERVER_DEV_MODE": "1"})
        )
        client = httpx.AsyncClient(base_url=running.url, timeout=60, trust_env=False)
        engine = await closing.enter_async_context(client)
        head = await Renderer(EngineApi(engine)).head(SERVED_MODEL, PAYLOAD, BLOCK_SIZE)
        folder = closing.enter_context(public_folder())
        control = await FakeControl(folder).start()
        closing.push_async_callback(control.stop)
        control.contents = {PAYLOAD.digest: PAYLOAD}
        router = RouterStack(folder / "envoy", control, [])
        closing.push_async_callback(router.stop)
        await router.start()
        url = httpx.URL(running.url)
        endpoint = RouteEndpoint(
            pod_uid="uid",
            pod="vllm-0",
            namespace=TENANT,
            address="127.0.0.1",
            port=url.port or 0,
            models=(SERVED_MODEL,),
            ready=True,
            warm=(head.digest,),
        )
        prefixes = (
            declared(id="1", name="desk", token_digests=(head.digest,)),
            declared(id="2", name="team-desk", owner=TEAM, salt=SALT),
        )
        await router.publish(prefixes, (endpoint,))

        async def read() -> bool:
            return await router.metric("promptprefix_router_texts", state="kept") == 1

        await until(read, "the picker has read the declared text")
        yield Stand(engine, router, head)


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


SHAPES = [(CHAT, chat), (MESSAGES, message), (RESPONSES, response)]
SPELLINGS = [
    (NFD, FUNCTION["parameters"]),
    (CRLF, FUNCTION["parameters"]),
    (PAYLOAD.system, PARAMETERS),
    (NFD, PARAMETERS),
]
Shape = Callable[[str, Json], Json]


@pytest.mark.parametrize(("text", "parameters"), SPELLINGS, ids=["nfd", "crlf", "tools", "both"])
@pytest.mark.parametrize(("path", "shape"), SHAPES, ids=[path for path, _ in SHAPES])
async def test_another_spelling_misses_and_the_router_makes_it_a_full_hit(
    stand: Stand, path: str, shape: Shape, text: str, parameters: Json
) -> None:
    body = {"model": SERVED_MODEL, **shape(text, parameters)}
    await stand.warm()
    assert await stand.direct(path, body) < stand.head.tokens
    if text == NFD:
        await stand.warm()
        assert await stand.direct(path, body) == 0
    await stand.warm()
    before = await stand.rewrites()
    assert await stand.routed(path, body) == stand.head.tokens
    assert await stand.rewrites() == before + 1


@pytest.mark.parametrize(("path", "shape"), SHAPES, ids=[path for path, _ in SHAPES])
async def test_a_tenants_request_hits_what_was_warmed_with_its_salt(
    stand: Stand, path: str, shape: Shape
) -> None:
    body = {"model": SERVED_MODEL, **shape(NFD, PARAMETERS), "cache_salt": "its client's own"}
    await stand.warm(cache_salt=SALT)
    assert await stand.routed(path, body) == 0, "nobody's requests have no salt"
    await stand.warm(cache_salt=SALT)
    assert await stand.routed(path, body, **{TENANT_HEADER: TEAM}) == stand.head.tokens


async def test_what_is_spelled_as_declared_passes_untouched(stand: Stand) -> None:
    await stand.warm()
    before = await stand.router.stat("envoy_http_ext_proc_streams_started")
    for path, shape in SHAPES:
        body = {"model": SERVED_MODEL, **shape(PAYLOAD.system, FUNCTION["parameters"])}
        assert await stand.routed(path, body) == stand.head.tokens
    assert await stand.router.stat("envoy_http_ext_proc_streams_started") == before
