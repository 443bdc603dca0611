"""The engine's HTTP API without a server: a request in, an answer or a stream out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

from e2e.simulator import answers
from e2e.simulator.bodies import (
    ChatBody,
    CompletionBody,
    LoadAdapterBody,
    RefusedError,
    TokenizeBody,
    UnloadAdapterBody,
    read,
)
from e2e.simulator.engine_core import AdapterError
from e2e.simulator.exposition import CONTENT_TYPE, page
from e2e.simulator.generation import Generator
from e2e.simulator.simulated_engine import EngineDownError, EngineGoneError, SimulatedEngine
from e2e.simulator.tokenizer import render, tokenize

JSON = "application/json"
VERSION = "0.32.0"
"""Of the vLLM that is simulated."""


@dataclass(frozen=True)
class Question:
    """A request as it came; ``query`` is undecoded."""

    method: str
    path: str
    query: str = ""
    content_type: str = ""
    content: bytes = field(default=b"", repr=False)

    def flag(self, name: str) -> bool:
        """Return a boolean of the query."""
        return self.value(name, "false").lower() in ("1", "true")

    def value(self, name: str, default: str) -> str:
        """Return a text of the query."""
        return parse_qs(self.query).get(name, [default])[-1]


@dataclass(frozen=True)
class Reply:
    """``stream``, if there is one, is the body."""

    status: int = 200
    content: bytes = b""
    content_type: str = ""
    stream: AsyncGenerator[bytes, None] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the content type, if there is content."""
        return {"content-type": self.content_type} if self.content_type else {}


def json_reply(body: object, status: int = 200) -> Reply:
    """Return a body as JSON."""
    return Reply(status, json.dumps(body, separators=(",", ":")).encode(), JSON)


class Api:
    """Answers for one engine. Raises `ConnectionError` where a real one's connection breaks."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._generator = Generator(engine)

    async def handle(self, question: Question) -> Reply:
        """Answer; a request that is cancelled is aborted in the engine."""
        if not self._engine.up:
            raise EngineDownError("the engine does not listen")
        self._engine.requests_seen += 1
        fault = self._engine.take_fault(question.path)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.drop:
                raise EngineGoneError("the connection was dropped")
            if fault.hang:
                await asyncio.Event().wait()
            if fault.status:
                raised = RefusedError(fault.status, "a simulated fault", kind="InternalServerError")
                return json_reply(raised.body(), fault.status)
        try:
            return await self._route(question)
        except RefusedError as refused:
            return json_reply(refused.body(), refused.status)
        except AdapterError as error:
            found = RefusedError(error.status, str(error), kind=error.kind)
            return json_reply(found.body(), found.status)

    async def _route(self, question: Question) -> Reply:
        if question.method == "GET":
            return self._look(question)
        match question.path:
            case "/tokenize":
                return self._tokenize(question)
            case "/v1/completions":
                body = read(CompletionBody, question.content_type, question.content)
                return await self._generated(self._generator.complete(body))
            case "/v1/chat/completions":
                chat = read(ChatBody, question.content_type, question.content)
                return await self._generated(self._generator.chat(chat))
        if question.path.endswith("_lora_adapter"):
            return self._adapter(question)
        return self._develop(question)

    async def _generated(self, chunks: AsyncGenerator[bytes, None]) -> Reply:
        """The generator's first item names the content type; what follows is the body."""
        content_type = (await anext(chunks)).decode()
        if content_type == JSON:
            return Reply(200, b"".join([chunk async for chunk in chunks]), content_type)
        return Reply(200, b"", content_type, chunks)

    def _look(self, question: Question) -> Reply:
        core, options = self._engine.core, self._engine.options
        match question.path:
            case "/health" | "/ping":
                return Reply()
            case "/version":
                return json_reply({"version": VERSION})
            case "/metrics":
                return Reply(200, page(core).encode(), CONTENT_TYPE)
            case "/v1/models":
                base = (options.model, options.model, None, options.max_model_len)
                loras = [(a.name, a.path, options.model, None) for a in core.adapters.values()]
                return json_reply(answers.models([base, *loras], int(self._engine.clock.wall())))
        if options.dev_mode:
            match question.path:
                case "/is_sleeping":
                    return json_reply({"is_sleeping": core.is_sleeping})
                case "/is_paused":
                    return json_reply({"is_paused": core.paused})
        return json_reply({"detail": "Not Found"}, 404)

    def _tokenize(self, question: Question) -> Reply:
        body = read(TokenizeBody, question.content_type, question.content)
        self._generator.check_model(body.model)
        if body.messages is not None:
            ids = render(
                body.messages,
                body.tools,
                body.chat_template_kwargs or {},
                generation_prompt=body.add_generation_prompt,
            )
        else:
            ids = tokenize(body.prompt or "")
        longest = self._engine.options.max_model_len
        return json_reply(
            {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": None}
        )

    def _adapter(self, question: Question) -> Reply:
        core = self._engine.core
        if question.path == "/v1/load_lora_adapter":
            body = read(LoadAdapterBody, question.content_type, question.content)
            if not Path(body.lora_path).is_dir():
                message = f"Loading lora {body.lora_name} failed: No adapter found for "
                raise AdapterError(404, "NotFoundError", message + body.lora_path)
            core.load_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace)
            done = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        elif question.path == "/v1/unload_lora_adapter":
            gone = read(UnloadAdapterBody, question.content_type, question.content)
            core.unload_adapter(gone.lora_name)
            done = f"Success: LoRA adapter '{gone.lora_name}' removed successfully."
        else:
            return json_reply({"detail": "Not Found"}, 404)
        return Reply(200, done.encode(), "text/plain")

    def _develop(self, question: Question) -> Reply:
        """Answer the routes of the development mode."""
        if not self._engine.options.dev_mode:
            return json_reply({"detail": "Not Found"}, 404)
        match question.path:
            case "/reset_prefix_cache":
                running = question.flag("reset_running_requests")
                return json_reply(
                    {"success": self._engine.core.reset_prefix_cache(running=running)}
                )
            case "/sleep":
                level = int(question.value("level", "1"))
                self._engine.sleep(level)
                return json_reply({"status": "sleeping", "level": level})
            case "/wake_up":
                self._engine.resume()
                return json_reply({"status": "awake", "tags": None})
            case "/pause":
                self._engine.pause()
                return json_reply({"status": "paused"})
            case "/resume":
                self._engine.resume()
                return json_reply({"status": "resumed"})
        return json_reply({"detail": "Not Found"}, 404)
