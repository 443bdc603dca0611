"""Cache salts: what can be one, which text has which, and who is told."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from promptprefix.fleet import Prefix, placement_id
from promptprefix.lint import lint_payload
from promptprefix.payload import Payload
from promptprefix.reasons import Reason
from promptprefix.wire import RoutePrefix
from promptprefix_operator.cluster import Cluster
from promptprefix_operator.declarations import Declarations
from promptprefix_operator.salts import SaltError, Salts, decoded_salt
from promptprefix_operator.sources import Source, SourceKind, absent, forbidden, read_source

SALT = "a-salt-that-nobody-may-read"
OTHER = "another-salt-of-another-tenant"
TENANT = Source(SourceKind.SALT, "ml", "tenant-a", "salt")
DIGEST = hashlib.sha256(SALT.encode()).hexdigest()
CONTENT = Payload(systemInstructions="one").digest


def encode(value: bytes | str) -> str:
    return base64.b64encode(value if isinstance(value, bytes) else value.encode()).decode()


@pytest.mark.parametrize("salt", ["x" * 16, "x" * 128, "ключ-арендатора-7", SALT])
def test_a_salt(salt: str) -> None:
    assert decoded_salt(encode(salt)) == salt


@pytest.mark.parametrize(
    ("encoded", "told"),
    [
        (encode("x" * 15), "has 15 characters; 16 to 128 are allowed"),
        (encode("x" * 129), "has 129 characters"),
        (encode(f"{SALT}/"), "engines refuse"),
        (encode(f"{SALT}@{SALT}"), "engines refuse"),
        (encode(f"{SALT}\\"), "engines refuse"),
        (encode(""), "has 0 characters"),
        (encode(b"\xff" * 32), "is not UTF-8 text (byte 0)"),
        ("%", "is not base64"),
        (encode(f"{SALT}\n"), "write it with printf, not echo"),
        (encode(f" {SALT}"), "white space"),
        (encode(f"{SALT}\0{SALT}"), "control characters"),
    ],
)
def test_what_can_not_be_a_salt_is_told_without_it(encoded: str, told: str) -> None:
    with pytest.raises(SaltError) as refused:
        decoded_salt(encoded)

    assert told in str(refused.value)
    assert SALT not in str(refused.value)


def resource(version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": "u-1", "namespace": "ml", "name": "a", "generation": version}
    return {
        "metadata": metadata | {"resourceVersion": str(version)},
        "spec": {
            "model": "m",
            "pods": {"selector": {"matchLabels": {"app": "v"}}},
            "content": {"inline": {"systemInstructions": "one"}},
            "cacheSaltRef": {"name": "tenant-a"},
        }
        | spec,
    }


def secret(version: int = 1, **data: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "data": data}


class Bench:
    """One resource with a cache salt."""

    def __init__(self) -> None:
        self.cluster = Cluster(lambda: None)
        self.salts = Salts()
        self.declarations = Declarations(lint_payload, self.salts)
        self.cluster.see_resource(resource())
        self.now = datetime(2026, 11, 29, tzinfo=UTC)

    def see(self, body: dict[str, Any]) -> Prefix:
        self.cluster.see_text(TENANT, read_source(TENANT, body))
        return self.prefix

    @property
    def prefix(self) -> Prefix:
        """The resource as it is read once its text is in force."""
        for _ in range(2):
            self.now += timedelta(seconds=5)
            [found] = self.declarations.prefixes(self.cluster, self.now)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_salt_is_awaited_and_makes_another_version(bench: Bench) -> None:
    awaited = bench.prefix
    assert awaited.version is None
    assert awaited.refusal is not None
    assert awaited.refusal.reason is Reason.RECONCILING
    assert bench.cluster.missing == {TENANT}

    found = bench.see(secret(salt=encode(SALT))).version

    assert found is not None
    assert found.salt_digest == DIGEST
    assert found.id == placement_id("u-1", "m", CONTENT, DIGEST)
    assert found.id != placement_id("u-1", "m", CONTENT)
    assert bench.salts.of(found.id) == SALT


def test_a_new_salt_is_a_new_version_and_the_old_ones_salt_is_known(bench: Bench) -> None:
    first = bench.see(secret(1, salt=encode(SALT))).version
    second = bench.see(secret(2, salt=encode(OTHER))).version

    assert first is not None
    assert second is not None
    assert first.content_digest == second.content_digest
    assert (bench.salts.of(first.id), bench.salts.of(second.id)) == (SALT, OTHER)


@pytest.mark.parametrize(
    ("reading", "reason", "stalled", "told"),
    [
        (forbidden(TENANT), Reason.CONTENT_FORBIDDEN, False, "contentSecrets.ml"),
        (absent(TENANT), Reason.CONTENT_NOT_FOUND, False, "spec.cacheSaltRef.name"),
        (read_source(TENANT, secret()), Reason.INVALID_SALT, True, "spec.cacheSaltRef.key"),
        (
            read_source(TENANT, secret(salt=encode("short"))),
            Reason.INVALID_SALT,
            True,
            "data.salt has 5 characters",
        ),
    ],
)
def test_without_its_salt_nothing_is_warmed(
    bench: Bench, reading: Any, reason: Reason, stalled: bool, told: str
) -> None:
    bench.cluster.see_text(TENANT, reading)

    prefix = bench.prefix

    assert prefix.version is None
    assert prefix.refusal is not None
    assert (prefix.refusal.reason, prefix.refusal.stalled) == (reason, stalled)
    assert prefix.refusal.message.startswith("Secret tenant-a in namespace ml: ")
    assert told in prefix.refusal.message


def test_a_lost_salt_lets_what_is_warm_stay(bench: Bench) -> None:
    found = bench.see(secret(1, salt=encode(SALT)))
    bench.cluster.see_text(TENANT, forbidden(TENANT))

    assert bench.prefix.earlier == (found.version,)


def test_salts_show_in_nothing_that_is_printed(bench: Bench) -> None:
    prefix = bench.see(secret(salt=encode(SALT)))
    routed = bench.salts.routed((route(prefix),), [prefix])

    for each in (prefix, routed, bench.cluster.text(TENANT), bench.salts, bench.declarations):
        assert SALT not in f"{each!r} {each!s}"


def test_salts_of_versions_that_are_gone_are_forgotten(bench: Bench) -> None:
    bench.see(secret(salt=encode(SALT)))
    bench.cluster.forget_resource("u-1")
    bench.declarations.prune(bench.cluster.resources, (), bench.now)

    assert len(bench.salts) == 0


def route(prefix: Prefix) -> RoutePrefix:
    assert prefix.version is not None
    version = prefix.version
    return RoutePrefix(
        id=version.id, name="a", tenant="ml", model="m", fingerprint=version.fingerprint
    )


def test_routers_are_told_the_salts(bench: Bench) -> None:
    prefix = bench.see(secret(salt=encode(SALT)))
    plain = RoutePrefix(id="u-2-0", name="b", tenant="ml", model="m", fingerprint="f")

    [salted, same] = bench.salts.routed((route(prefix), plain), [prefix])

    assert salted.salt == SALT
    assert same is plain


def test_a_text_whose_salt_is_not_known_is_not_routed(bench: Bench) -> None:
    prefix = bench.see(secret(salt=encode(SALT)))
    bench.salts.retain(())

    assert bench.salts.routed((route(prefix),), [prefix]) == ()


def test_routes_without_salts_stay_the_same_object() -> None:
    routes = (RoutePrefix(name="b", tenant="ml", model="m", fingerprint="f"),)

    assert Salts().routed(routes, []) is routes


def tenants(bench: Bench, *prefixes: Prefix) -> list[tuple[str, str, str]]:
    return [(t.namespace, t.tenant, t.salt) for t in bench.salts.tenants(prefixes)]


@pytest.mark.parametrize("more", [{}, {"suspend": True}])
def test_a_tenant_has_its_salt_whether_its_text_is_held_or_not(
    bench: Bench, more: dict[str, Any]
) -> None:
    bench.cluster.see_resource(resource(2, tenant="acme", **more))
    prefix = bench.see(secret(salt=encode(SALT)))

    assert tenants(bench, prefix) == [("ml", "acme", SALT)]
    bench.salts.retain(())
    assert tenants(bench, prefix) == [("ml", "acme", "")]
    assert tenants(bench, replace(prefix, deleting=True)) == []
    assert SALT not in repr(bench.salts.tenants([prefix]))


def test_a_tenant_whose_secret_can_not_be_read_has_an_unknown_salt(bench: Bench) -> None:
    bench.cluster.see_resource(resource(2, tenant="acme"))
    bench.cluster.see_text(TENANT, forbidden(TENANT))

    assert tenants(bench, bench.prefix) == [("ml", "acme", "")]


def test_without_a_tenant_nobody_has_the_salt(bench: Bench) -> None:
    assert tenants(bench, bench.see(secret(salt=encode(SALT)))) == []
