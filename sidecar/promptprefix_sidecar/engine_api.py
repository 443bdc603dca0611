"""The engine's HTTP API, as far as the sidecar uses it. Bodies become models here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptprefix.canonical import JsonValue
from promptprefix.pin_command import XARG
from promptprefix_sidecar.bearer import BearerError
from promptprefix_sidecar.exposition import EngineMetrics, ExpositionError, read_exposition
from promptprefix_sidecar.pins import PinAnswer

M = TypeVar("M", bound=BaseModel)

_ABORTED = "abort"
REPORT_MODE = "kv_cache_report_mode"
"""Argument of a request (vLLM 0.32): ``full`` has KV events name the cached blocks it used."""


class EngineError(Exception):
    """A question to the engine failed; the message never quotes what was sent."""


class EngineUnreachableError(EngineError):
    """Nothing listens, or the connection broke: the engine is down or starting."""


class EngineTimeoutError(EngineError):
    """No answer in time: the engine is busy or stuck."""


class EngineRefusedError(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, path: str) -> None:
        super().__init__(f"the engine answered {path} with HTTP {status}")
        self.status = status


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ServedModel(_Answer):
    """One entry of ``/v1/models``; adapters have no length of their own."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(_Answer):
    data: tuple[ServedModel, ...]


class _Version(_Answer):
    version: str


class _Tokens(_Answer):
    tokens: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...]


class _CachedTokens(_Answer):
    cached_tokens: int | None = None


class _Usage(_Answer):
    prompt_tokens: int = 0
    prompt_tokens_details: _CachedTokens | None = None


class _Choice(_Answer):
    finish_reason: str | None = None


class _Completion(_Answer):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    kv_transfer_params: dict[str, object] | None = None


class Prefilled(_Answer):
    """``cached_tokens`` is None where the engine doesn't say; ``answer`` is the pin plugin's."""

    prompt_tokens: int
    cached_tokens: int | None
    answer: PinAnswer | None = None


class EngineApi:
    """Client of one engine. Every method raises `EngineError` and nothing else.

    ``authorization`` gives the header of that name, None if the engine asks for none; it may raise
    `BearerError`.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        authorization: Callable[[], str] | None = None,
        timeout_s: float = 10.0,
        prefill_timeout_s: float = 600.0,
    ) -> None:
        self._client = client
        self._authorization = authorization
        self._timeout = timeout_s
        self._prefill_timeout = prefill_timeout_s
        self.in_flight = 0
        """Own completion requests that are under way: the engine counts them as load too."""

    async def check_health(self) -> None:
        """Return if the engine says that it is healthy."""
        await self._send("GET", "/health")

    async def version(self) -> str:
        """Return vLLM's version."""
        return _parse(_Version, await self._send("GET", "/version")).version

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the served models and adapters."""
        return _parse(_Models, await self._send("GET", "/v1/models")).data

    async def metrics(self) -> EngineMetrics:
        """Return the current values of the engine's metrics."""
        response = await self._send("GET", "/metrics")
        try:
            return read_exposition(response.text)
        except ExpositionError as error:
            raise EngineError(str(error)) from error

    async def tokenize_chat(self, body: Mapping[str, JsonValue]) -> tuple[int, ...]:
        """Return the token ids of a rendered chat request."""
        return _parse(_Tokens, await self._send("POST", "/tokenize", body)).tokens

    async def prefill(
        self,
        model: str,
        prompt_ids: Sequence[int],
        command: str | None = None,
        timeout_s: float | None = None,
        cache_salt: str = "",
        *,
        report_cached: bool = False,
    ) -> Prefilled:
        """Compute ``prompt_ids``, sending ``command`` to the pin plugin along with them.

        Only requests with the same ``cache_salt``, a secret, share what is cached by it. With
        ``report_cached`` the engine's KV events name the cached blocks that it used.
        """
        body: dict[str, JsonValue] = {
            "model": model,
            "prompt": prompt_ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "stream": False,
            "n": 1,
        }
        xargs: dict[str, JsonValue] = {}
        if command is not None:
            xargs[XARG] = command
        if report_cached:
            xargs[REPORT_MODE] = "full"
        if xargs:
            body["vllm_xargs"] = xargs
        if cache_salt:
            body["cache_salt"] = cache_salt
        self.in_flight += 1
        try:
            response = await self._send(
                "POST", "/v1/completions", body, timeout_s or self._prefill_timeout
            )
        finally:
            self.in_flight -= 1
        completion = _parse(_Completion, response)
        if any(choice.finish_reason == _ABORTED for choice in completion.choices):
            # Paused or put to sleep: what the plugin would have said is missing as well.
            raise EngineError("the engine aborted the request")
        raw = (completion.kv_transfer_params or {}).get(XARG)
        usage = completion.usage or _Usage(prompt_tokens=len(prompt_ids))
        details = usage.prompt_tokens_details
        return Prefilled(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            answer=None if raw is None else _validated(PinAnswer, raw),
        )

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, JsonValue] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        headers = self._headers()
        content = None
        if body is not None:
            # Key order and numbers travel as declared: the engine renders what it reads here.
            content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
            headers["content-type"] = "application/json"
        try:
            response = await self._client.request(
                method, path, content=content, headers=headers, timeout=timeout_s or self._timeout
            )
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"the engine did not answer {path} in time") from error
        except httpx.HTTPError as error:
            raise EngineUnreachableError(f"the engine can't be reached ({_why(error)})") from error
        if response.status_code != httpx.codes.OK:
            raise EngineRefusedError(response.status_code, path)
        return response

    def _headers(self) -> dict[str, str]:
        if self._authorization is None:
            return {}
        try:
            return {"authorization": self._authorization()}
        except BearerError as error:
            raise EngineError(f"the engine's API key {error}") from error


def _why(error: httpx.HTTPError) -> str:
    """Return what hinders a connection; a failure after that is named by its kind alone."""
    cause: BaseException = error
    while isinstance(error, httpx.ConnectError) and cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) if cause is not error and str(cause) else type(error).__name__


def _parse(model: type[M], response: httpx.Response) -> M:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise EngineError(_unreadable(error)) from error


def _validated(model: type[M], raw: object) -> M:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise EngineError(_unreadable(error)) from error


def _unreadable(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
    return f"the engine's answer can't be read ({error.title}: {place or 'not JSON'})"
