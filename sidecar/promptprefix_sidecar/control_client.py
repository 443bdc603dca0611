"""Client of the operator's control API: the long-poll for the desired set, texts and salts."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from promptprefix.payload import Payload
from promptprefix.redial import nobody_leads, redial_pause
from promptprefix.wire import (
    CONTENT_PATH,
    SALT_PATH,
    STANDBY_STATUS,
    SYNC_PATH,
    Salt,
    SyncRequest,
    SyncResponse,
)
from promptprefix_sidecar.bearer import BearerError, authorization
from promptprefix_sidecar.patience import Patience

LIMITS = httpx.Limits(max_keepalive_connections=4, keepalive_expiry=10.0)
"""Two questions, of which one takes the other's place, and a text or salt."""
MAX_CONTENT_BYTES = 8 * 1024 * 1024
"""Four fields of 262,144 characters, each at most 6 bytes as escaped JSON, and some air."""

_AWAY = frozenset({"timeout", "unreachable", "standby"})


class ControlError(Exception):
    """The control API gave no usable answer. ``kind`` is a short word for counters."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def passing(self) -> bool:
        """Whether the API was away, rather than asked wrongly or answering badly."""
        return self.kind in _AWAY


class ControlStatusError(ControlError):
    """The control API answered with an error status."""

    def __init__(self, status: int, path: str) -> None:
        super().__init__(f"http-{status}", f"the control API answered {path} with HTTP {status}")
        self.status = status


class StandbyError(ControlError):
    """For a while every dial has found an operator that does not lead."""

    def __init__(self) -> None:
        super().__init__("standby", "no operator leads: all that answer are standbys")


Connect = Callable[[ssl.SSLContext], httpx.AsyncClient]


def dialling(url: str) -> Connect:
    """Return what opens connections to the control API at ``url``."""

    def connect(context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, verify=context, trust_env=False, limits=LIMITS)

    return connect


class _Line:
    """The connections to one operator; they are closed when they are left and nobody uses them."""

    def __init__(self, client: httpx.AsyncClient, authority: str) -> None:
        self.authority = authority
        self._client = client
        self._users = 0
        self._left = False

    @asynccontextmanager
    async def use(self) -> AsyncIterator[httpx.AsyncClient]:
        """Use them; what is left meanwhile stays open until the end."""
        self._users += 1
        try:
            yield self._client
        finally:
            self._users -= 1
            await self._close_unused()

    async def leave(self) -> None:
        """Begin nothing on them any more."""
        self._left = True
        await self._close_unused()

    async def _close_unused(self) -> None:
        if self._left and not self._users:
            await self._client.aclose()


class ControlClient:
    """Reads CA and token for every request, so that renewed ones count at once.

    All requests share connections, so that the leader stays found and handshakes are few. A
    standby's answer leads to a new connection, not to an error, unless nobody leads. Every method
    raises `ControlError`.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        ca_file: Path,
        token_file: Path,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        patience: Patience | None = None,
    ) -> None:
        self._connect = connect
        self._ca_file = ca_file
        self._token_file = token_file
        self._sleep = sleep
        self._jitter = jitter
        self._patience = patience or Patience()
        self._line: _Line | None = None
        self._standbys = 0

    async def sync(self, request: SyncRequest) -> SyncResponse | None:
        """Report state and wait for the desired set; None if it did not change meanwhile."""
        body = request.model_dump_json().encode()
        while (response := await self._long_poll(body)).status_code == STANDBY_STATUS:
            self._standbys += 1
            await self._before_redial(self._standbys)
        self._standbys = 0
        _check(response, SYNC_PATH)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            return SyncResponse.model_validate_json(response.content)
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
            message = f"the desired set can't be read ({place or 'not JSON'})"
            raise ControlError("unreadable", message) from error

    async def content(self, digest: str) -> Payload:
        """Return a declared text, checked against its digest."""
        response = await self._fetched(CONTENT_PATH, digest)
        if len(response.content) > MAX_CONTENT_BYTES:
            raise ControlError("unreadable", "a declared text is larger than any resource")
        try:
            payload = Payload.model_validate_json(response.content)
        except ValidationError:
            # The error quotes the text, which is a secret: it must not be chained into a log.
            raise ControlError("unreadable", "a declared text can't be read") from None
        if payload.digest != digest:
            raise ControlError("unreadable", "a declared text does not have the digest asked for")
        return payload

    async def salt(self, placement_id: str) -> str:
        """Return the cache salt of a placement, a secret."""
        response = await self._fetched(SALT_PATH, placement_id)
        try:
            salt = Salt.model_validate_json(response.content).salt
        except ValidationError:
            # The error quotes the salt: it must not be chained into a log.
            raise ControlError("unreadable", "a cache salt can't be read") from None
        if not salt:
            raise ControlError("unreadable", "a cache salt is empty")
        return salt

    async def reconnect(self) -> None:
        """Let the next request reach another operator; what is asked already is left in peace."""
        line, self._line = self._line, None
        if line is not None:
            await line.leave()

    async def _long_poll(self, body: bytes) -> httpx.Response:
        headers = {"authorization": self._authorization(), "content-type": "application/json"}
        return await self._answer(
            lambda client: client.post(
                SYNC_PATH, content=body, headers=headers, timeout=self._patience.timeout
            )
        )

    async def _fetched(self, path: str, name: str) -> httpx.Response:
        """Return the leader's answer about one thing."""
        standbys = 0
        while (response := await self._fetch(path, name)).status_code == STANDBY_STATUS:
            standbys += 1
            await self._before_redial(standbys)
        _check(response, path)
        return response

    async def _fetch(self, path: str, name: str) -> httpx.Response:
        headers = {"authorization": self._authorization()}
        url = f"{path}/{quote(name, safe='')}"
        return await self._answer(
            lambda client: client.get(url, headers=headers, timeout=self._patience.timeout)
        )

    async def _answer(
        self, ask: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
    ) -> httpx.Response:
        """Ask on the connections that are kept; leave them if a standby answers, or nobody."""
        line = await self._connected()
        async with line.use() as client:
            try:
                response = await ask(client)
            except httpx.HTTPError as error:
                self._patience.failed(error)
                # Where none was made there is no operator to leave, and others may be in use.
                if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    await self._leave(line)
                if isinstance(error, httpx.TimeoutException):
                    message = "the control API did not answer in time"
                    raise ControlError("timeout", message) from error
                message = f"the control API can't be reached ({_cause(error)})"
                raise ControlError("unreachable", message) from error
        self._patience.answered()
        if response.status_code == STANDBY_STATUS:
            await self._leave(line)
        return response

    async def _leave(self, line: _Line) -> None:
        if self._line is line:
            await self.reconnect()

    async def _before_redial(self, standbys: int) -> None:
        if nobody_leads(standbys):
            raise StandbyError
        await self._sleep(redial_pause(standbys, self._jitter()))

    def _authorization(self) -> str:
        try:
            return authorization(self._token_file)
        except BearerError as error:
            raise ControlError("token", f"the token {error}") from error

    async def _connected(self) -> _Line:
        authority = self._authority()
        if self._line is not None and authority != self._line.authority:
            await self.reconnect()
        if self._line is None:
            self._line = _Line(self._connect(self._tls(authority)), authority)
        return self._line

    def _authority(self) -> str:
        """Return the CA's text without what is no ASCII: that stands between certificates only."""
        try:
            return self._ca_file.read_bytes().decode("ascii", "ignore")
        except OSError as error:
            message = f"the CA {self._ca_file} can't be read: {error.strerror}"
            raise ControlError("ca", message) from error

    def _tls(self, authority: str) -> ssl.SSLContext:
        """Return a context that trusts this CA and no other."""
        message = f"the CA {self._ca_file} is not a PEM certificate"
        if not authority.strip():  # Python would take the system's authorities instead
            raise ControlError("ca", message)
        try:
            return ssl.create_default_context(cadata=authority)
        except (ssl.SSLError, ValueError) as error:
            raise ControlError("ca", message) from error


def _check(response: httpx.Response, path: str) -> None:
    if response.status_code not in (httpx.codes.OK, httpx.codes.NO_CONTENT):
        raise ControlStatusError(response.status_code, path)


def _cause(error: BaseException) -> str:
    """Return the innermost reason; TLS failures say there what does not fit."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
