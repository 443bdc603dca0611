"""Cache salts: read from Secrets, told to pods and routers, and to nobody else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from typing import Final

from promptprefix.fleet import Prefix
from promptprefix.wire import RoutePrefix, TenantSalt

MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 128
"""vLLM refuses requests with a longer one, and with one of these."""
FORBIDDEN: Final = frozenset("@/\\")


class SaltError(ValueError):
    """The value can't be a salt; the message says why and what to do, never the value."""


def decoded_salt(encoded: str) -> str:
    """Return the salt in a base64 value of a Secret. Raises `SaltError`."""
    try:
        salt = base64.b64decode(encoded, validate=True).decode()
    except UnicodeDecodeError as error:
        raise SaltError(
            f"is not UTF-8 text (byte {error.start}): use letters and digits, such as what "
            "openssl rand -hex 32 prints"
        ) from None
    except ValueError:
        raise SaltError("is not base64") from None
    if salt != salt.strip():
        raise SaltError(
            "begins or ends with white space or a line break, which clients would have to send "
            "too: write it with printf, not echo"
        )
    if not salt.isprintable():
        raise SaltError("has control characters: use letters and digits")
    if not FORBIDDEN.isdisjoint(salt):
        raise SaltError("has one of @ / \\, which engines refuse: use letters and digits")
    if not MIN_CHARACTERS <= len(salt) <= MAX_CHARACTERS:
        raise SaltError(
            f"has {len(salt)} characters; {MIN_CHARACTERS} to {MAX_CHARACTERS} are allowed: use "
            "what openssl rand -hex 32 prints"
        )
    return salt


def salt_digest(salt: str) -> str:
    """Return the SHA-256 of a salt, in hex."""
    return hashlib.sha256(salt.encode()).hexdigest()


class Salts:
    """The salts of versions by their ids; as many as there are versions."""

    def __init__(self) -> None:
        self._salts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._salts)

    def keep(self, version: str, salt: str) -> None:
        """Remember the salt of a version."""
        self._salts[version] = salt

    def of(self, version: str) -> str | None:
        """Return the salt of a version; None if it has none or it isn't known any longer."""
        return self._salts.get(version)

    def retain(self, versions: Collection[str]) -> None:
        """Forget the salts of all other versions."""
        for gone in self._salts.keys() - set(versions):
            del self._salts[gone]

    def tenants(self, prefixes: Iterable[Prefix]) -> tuple[TenantSalt, ...]:
        """Return the salts that tenants have declared, also where nothing of it is held.

        Of a tenant of whose salts none can be read the salt is empty.
        """
        found: dict[tuple[str, str], set[str]] = {}
        for prefix in prefixes:
            spec = prefix.spec
            if spec is None or prefix.deleting or not spec.tenant or spec.cacheSaltRef is None:
                continue
            known = found.setdefault((prefix.namespace, spec.tenant), set())
            if prefix.version is not None and prefix.version.id in self._salts:
                known.add(self._salts[prefix.version.id])
        return tuple(
            TenantSalt(namespace=namespace, tenant=tenant, salt=salt)
            for (namespace, tenant), salts in sorted(found.items())
            for salt in sorted(salts) or ("",)
        )

    def routed(
        self, routes: tuple[RoutePrefix, ...], prefixes: Iterable[Prefix]
    ) -> tuple[RoutePrefix, ...]:
        """Return the routes with their salts.

        A salted text whose salt is not known any longer is left out: requests with its salt could
        not be told from those without.
        """
        salted = {
            version.id
            for prefix in prefixes
            for version in (prefix.version, *prefix.earlier)
            if version is not None and prefix.salted(version)
        }
        if not salted:
            return routes
        return tuple(
            route.model_copy(update={"salt": self._salts[route.id]})
            if route.id in self._salts
            else route
            for route in routes
            if route.id not in salted or route.id in self._salts
        )
