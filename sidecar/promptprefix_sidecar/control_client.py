"""Client of the operator's control API: the long-poll for the desired set, and contents."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
from pydantic import ValidationError

from promptprefix.payload import Payload
from promptprefix.wire import (
    CONTENT_PATH,
    LONG_POLL_S,
    SYNC_PATH,
    SyncRequest,
    SyncResponse,
)
from promptprefix_sidecar.bearer import BearerError, authorization

CONNECT_TIMEOUT_S = 10.0
ANSWER_MARGIN_S = 15.0
MAX_CONTENT_BYTES = 8 * 1024 * 1024
"""Four fields of 262,144 characters, each at most 6 bytes as escaped JSON, and some air."""


class ControlError(Exception):
    """The control API gave no usable answer. ``kind`` is a short word for counters."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ControlStatusError(ControlError):
    """The control API answered with an error status."""

    def __init__(self, status: int, path: str) -> None:
        super().__init__(f"http-{status}", f"the control API answered {path} with HTTP {status}")
        self.status = status


Connect = Callable[[ssl.SSLContext], httpx.AsyncClient]


class ControlClient:
    """Reads CA and token for every request, so that renewed ones count at once.

    Every method raises `ControlError`.
    """

    def __init__(self, connect: Connect, *, ca_file: Path, token_file: Path) -> None:
        self._connect = connect
        self._ca_file = ca_file
        self._token_file = token_file
        self._ca = ""
        self._client: httpx.AsyncClient | None = None

    async def sync(self, request: SyncRequest) -> SyncResponse | None:
        """Report state and wait for the desired set; None if it did not change meanwhile."""
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=LONG_POLL_S + ANSWER_MARGIN_S)
        body = request.model_dump_json().encode()
        response = await self._send("POST", SYNC_PATH, body, timeout)
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
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=LONG_POLL_S)
        response = await self._send("GET", f"{CONTENT_PATH}/{digest}", None, timeout)
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

    async def reconnect(self) -> None:
        """Close the connections, so that the next request may reach another operator."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _send(
        self, method: str, path: str, body: bytes | None, limits: httpx.Timeout
    ) -> httpx.Response:
        client = await self._connected()
        headers = {"authorization": self._authorization()}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            response = await client.request(
                method, path, content=body, headers=headers, timeout=limits
            )
        except httpx.TimeoutException as error:
            raise ControlError("timeout", "the control API did not answer in time") from error
        except httpx.HTTPError as error:
            await self.reconnect()
            message = f"the control API can't be reached ({_cause(error)})"
            raise ControlError("unreachable", message) from error
        if response.status_code not in (httpx.codes.OK, httpx.codes.NO_CONTENT):
            raise ControlStatusError(response.status_code, path.partition("/content/")[0])
        return response

    def _authorization(self) -> str:
        try:
            return authorization(self._token_file)
        except BearerError as error:
            raise ControlError("token", f"the token {error}") from error

    async def _connected(self) -> httpx.AsyncClient:
        authority = self._authority()
        if self._client is not None and authority != self._ca:
            await self.reconnect()
        if self._client is None:
            self._client = self._connect(self._tls(authority))
            self._ca = authority
        return self._client

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


def _cause(error: BaseException) -> str:
    """Return the innermost reason; TLS failures say there what does not fit."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
