"""The Secret with the operator's CA, serving certificate, leader term and seed of keys.

The Secret exists beforehand, so that the operator needs to get and update this one name only. Two
operators that start at once agree through its resourceVersion: the later one reads again.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from promptprefix.block_stream import KEY_BYTES
from promptprefix_operator.api_server import ApiError, ApiServer
from promptprefix_operator.certificates import Pair, new_serving, serving_usable
from promptprefix_operator.rotation import Authorities, rotate

SECRET = "promptprefix-operator-tls"  # noqa: S105 - the name of an object
_CONFLICT = 409
_ATTEMPTS = 5


@dataclass(frozen=True)
class Credentials:
    """What the Secret holds. ``term`` is 0 until an operator has led.

    From ``seed`` come the keys of the feeds of block names (`block_stream`). It stays as it is:
    with another one all feeds have other names.
    """

    authorities: Authorities
    serving: Pair
    term: int
    seed: bytes = field(default=b"", repr=False)


class CredentialStore:
    """Reads, completes and renews the credentials of an operator that serves ``names``."""

    def __init__(self, api: ApiServer, namespace: str, names: Collection[str]) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{SECRET}"
        self._names = names

    async def read(self) -> Credentials:
        """Return what the Secret holds, fit or not."""
        return credentials_of((await self._api.get(self._path)).get("data") or {})

    async def lead(self, now: datetime) -> Credentials:
        """Take a new leader term, above every earlier one; complete the rest as `renew` does.

        A term is at least the Unix time, so that it rises also where the Secret was made anew.
        """
        return await self._settle(now, b"", new_term=True)

    async def renew(self, now: datetime, published: bytes = b"") -> Credentials:
        """Return the credentials, replaced where they are missing, unfit or near their end.

        ``published`` is the bundle that every client was given.
        """
        return await self._settle(now, published, new_term=False)

    async def _settle(self, now: datetime, published: bytes, *, new_term: bool) -> Credentials:
        for attempt in range(_ATTEMPTS):
            secret = await self._api.get(self._path)
            found = credentials_of(secret.get("data") or {})
            wanted = complete(found, self._names, now, published, new_term=new_term)
            if wanted == found:
                return wanted
            try:
                await self._api.replace(self._path, {**secret, "data": data_of(wanted)})
            except ApiError as error:
                if error.status != _CONFLICT or attempt == _ATTEMPTS - 1:
                    raise
                continue
            return wanted
        raise AssertionError("unreachable")


def complete(
    found: Credentials,
    names: Collection[str],
    now: datetime,
    published: bytes = b"",
    *,
    new_term: bool,
) -> Credentials:
    """Return ``found`` with what is unfit replaced and what is due done."""
    known = found.authorities
    authorities = rotate(known, now, published=published == known.bundle)
    serving = found.serving
    if not serving_usable(serving, authorities.current, names, now):
        serving = new_serving(authorities.current, names, now)
    term = max(found.term + 1, int(now.timestamp())) if new_term else found.term
    seed = found.seed if len(found.seed) == KEY_BYTES else secrets.token_bytes(KEY_BYTES)
    return Credentials(authorities, serving, term, seed)


def credentials_of(data: Mapping[str, Any]) -> Credentials:
    """Read the Secret's data; what is missing or not base64 is empty."""

    def read(key: str) -> bytes:
        try:
            return base64.b64decode(str(data.get(key) or ""), validate=True)
        except binascii.Error:
            return b""

    term = read("term").decode("ascii", "replace")
    return Credentials(
        authorities=Authorities(
            current=Pair(read("ca.crt"), read("ca.key")),
            coming=Pair(read("next-ca.crt"), read("next-ca.key")),
            former=read("previous-ca.crt"),
        ),
        serving=Pair(read("tls.crt"), read("tls.key")),
        term=int(term) if term.isdigit() else 0,
        seed=read("blocks-seed"),
    )


def data_of(credentials: Credentials) -> dict[str, str]:
    """Return the Secret's data."""
    authorities = credentials.authorities
    fields = {
        "ca.crt": authorities.current.certificate,
        "ca.key": authorities.current.key,
        "next-ca.crt": authorities.coming.certificate,
        "next-ca.key": authorities.coming.key,
        "previous-ca.crt": authorities.former,
        "tls.crt": credentials.serving.certificate,
        "tls.key": credentials.serving.key,
        "term": str(credentials.term).encode(),
        "blocks-seed": credentials.seed,
    }
    return {key: base64.b64encode(value).decode() for key, value in fields.items() if value}
