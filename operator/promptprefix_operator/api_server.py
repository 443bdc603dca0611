"""The Kubernetes API server, through the official asyncio client, in plain JSON.

The client's generated classes are left aside: the core group alone costs 24 MB of memory.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import kopf
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

Json = Mapping[str, Any]

PatchType = Literal[
    "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json"
]

_TIMEOUT_S = 15.0
_MESSAGE_CHARS = 500
_FORBIDDEN = 403
_TOO_MANY = 429
_SERVER_ERROR = 500
_REMEDY = "the chart grants it: helm upgrade, or see the table of rights in operator/README.md"


class ApiError(Exception):
    """The API server refused or could not be reached; ``status`` is 0 then."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def away(self) -> bool:
        """Whether the API server gave no answer, or none to anybody."""
        return self.status in (0, _TOO_MANY) or self.status >= _SERVER_ERROR


class FencedError(ApiError):
    """The write was not sent: this process doesn't lead (any more)."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(0, f"{method} {path}: not sent, this operator does not lead")


@dataclass(frozen=True)
class Listing:
    """A collection, and its resourceVersion: that of the latest write to anything before it."""

    items: Sequence[Json]
    version: str


async def load_configuration() -> Configuration:
    """Return the credentials: the pod's ServiceAccount, else the kubeconfig."""
    configuration = Configuration()
    if SERVICE_HOST_ENV_NAME in os.environ:
        load_incluster_config(client_configuration=configuration)
        return configuration
    path = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    await load_kube_config(config_file=path, client_configuration=configuration)
    return configuration


async def connection_of(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the same credentials for kopf; a ServiceAccount's token is read anew."""
    token = await configuration.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if token else None,
        token=token.rpartition(" ")[2] if token else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


class ApiServer:
    """Requests to the API server; each answers the object or raises `ApiError`."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)
        self._seconds_left: Callable[[], float] = lambda: math.inf

    def fenced(self, seconds_left: Callable[[], float]) -> ApiServer:
        """Return the same connections for a leader that may write for ``seconds_left()``.

        After that writes raise `FencedError`; none is waited for longer.
        """
        fenced = copy.copy(self)
        fenced._seconds_left = seconds_left
        return fenced

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Read an object or a list."""
        return await self._request("GET", path, query=query)

    async def list_all(self, path: str, page: int = 250) -> Listing:
        """Read a whole collection, ``page`` objects at a time."""
        items: list[Json] = []
        query = {"limit": str(page)}
        while True:
            answer = await self.get(path, query)
            items.extend(answer.get("items") or ())
            metadata = answer.get("metadata") or {}
            cursor = metadata.get("continue")
            if not cursor:
                return Listing(items, str(metadata.get("resourceVersion") or ""))
            query = {"limit": str(page), "continue": cursor}

    async def create(self, path: str, body: Json) -> Json:
        """Create an object."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object; its resourceVersion guards against lost updates (409)."""
        return await self._request("PUT", path, body=body)

    async def patch(
        self,
        path: str,
        body: Json | Sequence[Json],
        kind: PatchType,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Patch an object; a JSON patch is a list."""
        return await self._request("PATCH", path, query=query, body=body, content_type=kind)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        await self._request("DELETE", path)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        seconds = _TIMEOUT_S
        if method != "GET":
            seconds = min(seconds, self._seconds_left())
            if seconds <= 0:
                raise FencedError(method, path)
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=seconds)
            data = await response.read()
        except ApiException as error:
            raise ApiError(error.status or 0, str(error.reason)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"{method} {path}: {type(error).__name__}: {error}") from error
        if not 200 <= response.status < 300:
            message = f"{method} {path}: {response.status} {_message(data)}"
            if response.status == _FORBIDDEN:
                message = f"{message}; {_REMEDY}"
            raise ApiError(response.status, message)
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ApiError(response.status, f"{method} {path}: the answer is not an object")
        return answer


def _message(data: bytes) -> str:
    """Return what the API server says; of invalid objects only the fields, never their values."""
    try:
        status = json.loads(data)
    except ValueError:
        return ""
    if not isinstance(status, dict):
        return ""
    if status.get("reason") == "Invalid":
        causes = (status.get("details") or {}).get("causes") or ()
        return f"invalid: {', '.join(str(cause.get('field')) for cause in causes)}"
    return str(status.get("message") or "")[:_MESSAGE_CHARS]
