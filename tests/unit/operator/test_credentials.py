"""The Secret: made, agreed on, renewed, and good for TLS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from promptprefix.block_stream import KEY_BYTES
from promptprefix_operator.api_server import ApiError
from promptprefix_operator.certificates import (
    AUTHORITY_LIFE,
    SERVING_LIFE,
    Pair,
    service_names,
)
from promptprefix_operator.credentials import (
    Credentials,
    CredentialStore,
    complete,
    credentials_of,
    data_of,
)
from promptprefix_operator.rotation import Authorities

NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = (*service_names("operator", "system"), "127.0.0.1")
EMPTY = credentials_of({})
MADE = complete(EMPTY, NAMES, NOW, new_term=True)


def test_the_pair_serves_tls_under_its_names_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "pair.pem"
    file.write_bytes(MADE.serving.key + MADE.serving.certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    client = ssl.create_default_context(cadata=MADE.authorities.current.certificate.decode())
    for name in NAMES:
        _shake_hands(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(client, server, "another.name")


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass


def test_what_is_fit_stays() -> None:
    assert complete(MADE, NAMES, NOW + timedelta(days=1), new_term=False) == MADE
    assert credentials_of(data_of(MADE)) == MADE


def test_all_authorities_are_kept() -> None:
    rotating = replace(
        MADE, authorities=Authorities(MADE.authorities.current, MADE.serving, b"former")
    )
    assert credentials_of(data_of(rotating)) == rotating


async def test_a_standby_reads_and_writes_nothing() -> None:
    api = Api(data_of(MADE))
    assert await store(api).read() == MADE
    assert api.writes == 0


@pytest.mark.parametrize(
    ("found", "names", "after", "same_authority"),
    [
        (MADE, NAMES, SERVING_LIFE * 2 / 3, True),
        (MADE, (*NAMES, "more"), timedelta(), True),
        (replace(MADE, serving=Pair(b"", b"")), NAMES, timedelta(), True),
        (replace(MADE, serving=Pair(b"nonsense", b"nonsense")), NAMES, timedelta(), True),
        (
            replace(MADE, serving=replace(MADE.serving, key=MADE.authorities.current.key)),
            NAMES,
            timedelta(),
            True,
        ),
        (MADE, NAMES, AUTHORITY_LIFE, False),
        (replace(MADE, authorities=Authorities()), NAMES, timedelta(), False),
    ],
)
def test_what_is_unfit_is_replaced(
    found: Credentials, names: tuple[str, ...], after: timedelta, same_authority: bool
) -> None:
    made = complete(found, names, NOW + after, new_term=False)
    assert made.serving != found.serving
    assert (made.authorities == found.authorities) == same_authority
    certificate = x509.load_pem_x509_certificate(made.serving.certificate)
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate(made.authorities.current.certificate)
    )
    assert complete(made, names, NOW + after, new_term=False) == made


def test_terms_only_rise() -> None:
    assert MADE.term == int(NOW.timestamp())
    early = NOW - timedelta(days=1)
    assert complete(MADE, NAMES, early, new_term=True).term == MADE.term + 1
    later = NOW + timedelta(days=1)
    assert complete(MADE, NAMES, later, new_term=True).term == int(later.timestamp())


@pytest.mark.parametrize("seed", [b"", b"short"])
def test_a_seed_that_is_missing_is_made_and_stays(seed: bytes) -> None:
    upgraded = replace(MADE, seed=seed)  # as an earlier release left the Secret
    made = complete(upgraded, NAMES, NOW, new_term=False)
    assert len(made.seed) == KEY_BYTES
    assert made.seed != complete(upgraded, NAMES, NOW, new_term=False).seed
    for after in (timedelta(), SERVING_LIFE, AUTHORITY_LIFE):
        assert complete(made, NAMES, NOW + after, new_term=True).seed == made.seed
    assert credentials_of(data_of(made)) == made
    assert repr(made.seed) not in repr(made)


class Api:
    """One Secret; ``meanwhile`` is written by another operator before the first replacement."""

    def __init__(self, data: dict[str, str], meanwhile: dict[str, str] | None = None) -> None:
        self.secret = {"metadata": {"resourceVersion": "1"}, "data": data}
        self.meanwhile = meanwhile
        self.writes = 0

    async def get(self, path: str) -> Mapping[str, Any]:
        assert path == "/api/v1/namespaces/system/secrets/promptprefix-operator-tls"
        return dict(self.secret)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.meanwhile is not None:
            self.secret = {"metadata": {"resourceVersion": "2"}, "data": self.meanwhile}
            self.meanwhile = None
        if body["metadata"] != self.secret["metadata"]:
            raise ApiError(409, "conflict")
        self.writes += 1
        self.secret = dict(body)
        return body


def store(api: Api) -> CredentialStore:
    return CredentialStore(api, "system", NAMES)  # type: ignore[arg-type]


async def test_two_starts_agree_on_one_authority() -> None:
    api = Api({}, meanwhile=data_of(MADE))
    found = await store(api).lead(NOW)
    assert (found.authorities, found.serving) == (MADE.authorities, MADE.serving)
    assert found.term == MADE.term + 1
    assert found.seed == MADE.seed
    assert credentials_of(api.secret["data"]) == found


async def test_nothing_is_written_while_all_is_fit() -> None:
    api = Api(data_of(MADE))
    assert await store(api).renew(NOW) == MADE
    assert api.writes == 0


async def test_a_conflict_that_stays_is_told() -> None:
    api = Api({})

    async def conflict(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ApiError(409, "conflict")

    api.replace = conflict  # type: ignore[method-assign]
    with pytest.raises(ApiError, match="conflict"):
        await store(api).renew(NOW)
