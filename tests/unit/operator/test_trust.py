"""The CA where clients look for it, and the certificate that is served, while both change."""

from __future__ import annotations

import asyncio
import base64
import copy
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from promptprefix_operator import serving_certificate, trust
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.certificates import (
    AUTHORITY_LIFE,
    NOTHING,
    Pair,
    new_authority,
    new_serving,
)
from promptprefix_operator.credentials import Credentials, CredentialStore, credentials_of, data_of
from promptprefix_operator.rotation import OVERLAP, RENEWAL, Authorities
from promptprefix_operator.serving_certificate import CertificateFiles, ServingCertificate
from promptprefix_operator.trust import Trust
from promptprefix_operator.webhook_trust import WebhookTrust, changes_of

NOW = datetime.now(UTC)
NAMES = ("operator",)
AUTHORITY = new_authority(NOW)
SECRET = "/api/v1/namespaces/system/secrets/promptprefix-operator-tls"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/injector"


def config_map(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/promptprefix-ca"


@dataclass
class Api:
    """Objects by path; ``failing`` paths answer an error."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    failing: dict[str, ApiError] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    reads: int = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.reads += 1
        if path in self.failing:
            raise self.failing[path]
        return copy.deepcopy(self.objects[path])

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(path)
        self.objects[path] = body
        return body

    async def patch(self, path: str, body: Any, kind: str) -> dict[str, Any]:
        self.writes.append(path)
        if kind == "application/merge-patch+json":
            self.objects[path] |= body
        else:
            self._json_patch(path, body)
        return self.objects[path]

    def _json_patch(self, path: str, body: Sequence[dict[str, Any]]) -> None:
        test, *changes = body
        found = self.objects[path]
        if found["metadata"]["resourceVersion"] != test["value"]:
            raise ApiError(422, "the test failed")
        for change in changes:
            _, _, index, *_ = change["path"].split("/")
            found["webhooks"][int(index)]["clientConfig"]["caBundle"] = change["value"]


def api_with(credentials: Credentials | None = None) -> Api:
    data = {} if credentials is None else data_of(credentials)
    return Api(
        {
            SECRET: {"metadata": {"resourceVersion": "1"}, "data": data},
            config_map("system"): {},
            config_map("ml"): {},
            HOOKS: {
                "metadata": {"resourceVersion": "5"},
                "webhooks": [{"clientConfig": {}}, {"clientConfig": {"caBundle": "b2xk"}}],
            },
        }
    )


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def keeper(api: Api, clock: Clock) -> tuple[Trust, ServingCertificate]:
    serving = ServingCertificate()
    store = CredentialStore(api, "system", NAMES)  # type: ignore[arg-type]
    hooks = WebhookTrust(api, "injector")  # type: ignore[arg-type]
    found = Trust(
        api=api,  # type: ignore[arg-type]
        store=store,
        namespaces=("ml", "system"),
        now=clock,
        serving=serving,
        webhooks=hooks,
    )
    return found, serving


def published(api: Api) -> set[bytes]:
    """The bundles that clients have."""
    maps = [api.objects[config_map(each)]["data"]["ca.crt"].encode() for each in ("ml", "system")]
    hooks = [
        base64.b64decode(each["clientConfig"]["caBundle"])
        for each in api.objects[HOOKS]["webhooks"]
    ]
    return {*maps, *hooks}


def stored(api: Api) -> Credentials:
    return credentials_of(api.objects[SECRET]["data"])


async def test_a_leader_makes_and_publishes_and_then_writes_no_more() -> None:
    api = api_with()
    leader, serving = keeper(api, Clock())
    await leader.lead()
    assert serving.loaded.is_set()
    assert await leader._check()
    assert published(api) == {stored(api).authorities.bundle}
    writes = len(api.writes)
    assert await leader._check()
    assert len(api.writes) == writes


async def test_what_somebody_reset_is_published_again() -> None:
    api = api_with()
    leader, _ = keeper(api, Clock())
    await leader.lead()
    await leader._check()
    for webhook in api.objects[HOOKS]["webhooks"]:
        webhook["clientConfig"] = {"service": {"name": "promptprefix-webhook"}}
    api.objects[config_map("ml")] = {}
    assert await leader._check()
    assert published(api) == {stored(api).authorities.bundle}
    assert api.objects[HOOKS]["webhooks"][0]["clientConfig"]["service"]


async def test_no_authority_signs_before_every_client_knows_it() -> None:
    api, clock = api_with(), Clock()
    leader, _ = keeper(api, clock)
    await leader.lead()
    first = stored(api).authorities.current
    clock.now = NOW + AUTHORITY_LIFE - RENEWAL
    api.failing[config_map("ml")] = ApiError(403, "forbidden")
    assert not await leader._check()
    clock.now += OVERLAP
    assert not await leader._check()
    assert stored(api).authorities.current == first
    del api.failing[config_map("ml")]
    assert await leader._check()
    assert stored(api).authorities.current == first, "they have it only now"
    second = stored(api).authorities.coming
    assert await leader._check()
    assert stored(api).authorities == Authorities(second, NOTHING, first.certificate)
    assert published(api) == {stored(api).authorities.bundle}


async def test_a_standby_serves_what_the_leader_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(trust, "CHECK_SECONDS", 0.001)
    api = api_with()
    standby, serving = keeper(api, Clock())
    following = asyncio.create_task(standby.follow())
    async with asyncio.timeout(5):
        while api.reads < 3:  # noqa: ASYNC110 - it looks again and again
            await asyncio.sleep(0)
    assert not serving.loaded.is_set()
    leader, _ = keeper(api, Clock())
    await leader.lead()
    writes = list(api.writes)
    await asyncio.wait_for(serving.loaded.wait(), 5)
    assert api.writes == writes
    await standby.lead()
    await asyncio.wait_for(following, 5)


async def test_a_standby_that_may_not_read_the_secret_asks_ever_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = api_with()
    api.failing[SECRET] = ApiError(403, "forbidden")
    standby, _ = keeper(api, Clock())
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        standby._leads = len(pauses) == 8

    monkeypatch.setattr(trust.asyncio, "sleep", sleep)
    await standby.follow()
    assert api.reads == 8
    assert sum(pauses) > 50
    assert max(pauses) <= trust.CHECK_SECONDS


def test_only_what_differs_is_patched_and_only_in_that_version() -> None:
    right = {"clientConfig": {"caBundle": base64.b64encode(b"ca").decode()}}
    found = {"metadata": {"resourceVersion": "9"}, "webhooks": [right, {"clientConfig": {}}]}
    assert changes_of(found, b"ca") == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "9"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "Y2E="},
    ]
    found["webhooks"] = [right]
    assert changes_of(found, b"ca") == []
    assert changes_of({"metadata": {"resourceVersion": "9"}}, b"ca") == []


@pytest.mark.parametrize(
    "error", [ApiError(403, "forbidden"), ApiError(404, "none"), ApiError(0, "")]
)
async def test_webhooks_that_can_not_be_told_are_told_later(error: ApiError) -> None:
    api = api_with()
    hooks = WebhookTrust(api, "injector")  # type: ignore[arg-type]
    api.failing[HOOKS] = error
    assert not await hooks.publish(b"ca")
    del api.failing[HOOKS]
    assert await hooks.publish(b"ca")


def pair() -> Pair:
    return new_serving(AUTHORITY, NAMES, NOW)


async def served(certificate: ServingCertificate) -> bytes:
    """Return the certificate that a new connection gets."""
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context
    )
    async with server:
        client = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="operator"
        )
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
    return found


def der(made: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(made.certificate.decode())


async def test_a_broken_pair_of_files_changes_nothing(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    serving = ServingCertificate()
    files = CertificateFiles(certificate, key, serving)
    assert "FileNotFoundError" in files._check("")
    first, second = pair(), pair()
    key.write_bytes(first.key)
    certificate.write_bytes(first.certificate)
    assert files._check("") == ""
    assert await served(serving) == der(first)
    certificate.write_bytes(second.certificate)  # as between two writes of somebody careless
    assert "SSLError" in files._check("")
    assert await served(serving) == der(first)
    key.write_bytes(second.key)
    assert files._check("") == ""
    assert await served(serving) == der(second)


async def test_files_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_certificate, "FILES_SECONDS", 0.001)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    serving = ServingCertificate()
    keeping = asyncio.create_task(CertificateFiles(certificate, key, serving).keep())
    made = pair()
    key.write_bytes(made.key)
    certificate.write_bytes(made.certificate)
    await asyncio.wait_for(serving.loaded.wait(), 5)
    keeping.cancel()
