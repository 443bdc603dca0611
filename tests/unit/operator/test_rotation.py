"""Authorities that follow one another: what is due when, and that nobody is ever locked out."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given, settings
from hypothesis import strategies as st

from promptprefix_operator.certificates import (
    AUTHORITY_LIFE,
    NOTHING,
    SERVING_LIFE,
    Pair,
    can_sign,
    new_authority,
    new_serving,
)
from promptprefix_operator.credentials import Credentials, complete, credentials_of
from promptprefix_operator.rotation import OVERLAP, PATIENCE, RENEWAL, Authorities, rotate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
FIRST = new_authority(NOW)
DUE = NOW + AUTHORITY_LIFE - RENEWAL
SECOND = new_authority(DUE)
ALONE = Authorities(FIRST)
BOTH = Authorities(FIRST, SECOND)
TURNED = Authorities(SECOND, NOTHING, FIRST.certificate)
NAMES = ("operator",)
BROKEN = replace(FIRST, key=SECOND.key)


@pytest.mark.parametrize(
    ("found", "now", "published", "expected"),
    [
        (ALONE, DUE - DAY, True, ALONE),
        (BOTH, DUE + OVERLAP - DAY, True, BOTH),
        (BOTH, DUE + OVERLAP, False, BOTH),
        (BOTH, DUE + OVERLAP, True, TURNED),
        (BOTH, NOW + AUTHORITY_LIFE - PATIENCE, False, TURNED),
        (BOTH, DUE - DAY, True, BOTH),  # a clock that was set back
        (TURNED, NOW + AUTHORITY_LIFE - DAY, True, TURNED),
        (TURNED, NOW + AUTHORITY_LIFE, True, Authorities(SECOND)),
        (Authorities(BROKEN, SECOND), DUE, True, TURNED),
        (Authorities(NOTHING, SECOND), DUE, True, Authorities(SECOND)),
        (BOTH, NOW + AUTHORITY_LIFE, True, Authorities(SECOND)),
        (Authorities(FIRST, Pair(b"x", b"y"), b"z"), NOW, True, ALONE),
    ],
)
def test_what_is_due(
    found: Authorities, now: datetime, published: bool, expected: Authorities
) -> None:
    assert rotate(found, now, published=published) == expected


@pytest.mark.parametrize(
    ("found", "now", "current", "former"),
    [
        (Authorities(), NOW, None, b""),
        (Authorities(Pair(b"x", b"y")), NOW, None, b""),
        (Authorities(BROKEN), NOW, None, FIRST.certificate),
        (ALONE, NOW + AUTHORITY_LIFE, None, b""),
        (ALONE, DUE, FIRST, b""),
    ],
)
def test_a_new_authority(
    found: Authorities, now: datetime, current: Pair | None, former: bytes
) -> None:
    made = rotate(found, now, published=True)
    assert made.former == former
    if current is None:
        assert made.current.certificate != found.current.certificate
        assert can_sign(made.current)
        assert made.coming == NOTHING
    else:
        assert made.current == current
        assert can_sign(made.coming)
    assert rotate(made, now, published=True) == made


def test_what_an_authority_signed_never_outlives_it_in_the_bundle() -> None:
    assert RENEWAL > SERVING_LIFE + OVERLAP
    serving = new_serving(FIRST, NAMES, NOW + AUTHORITY_LIFE - DAY)
    certificate = x509.load_pem_x509_certificate(serving.certificate)
    assert certificate.not_valid_after_utc == NOW + AUTHORITY_LIFE


def verifies(bundle: bytes, serving: Pair) -> bool:
    """Whether one of the bundle's authorities issued the certificate."""
    certificate = x509.load_pem_x509_certificate(serving.certificate)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return True
    return False


@settings(max_examples=20)
@given(
    pauses=st.lists(st.floats(min_value=0.02, max_value=20), min_size=30, max_size=80),
    lag=st.floats(min_value=0, max_value=OVERLAP / DAY - 0.01),
)
def test_whoever_has_any_recent_bundle_verifies_any_recent_certificate(
    pauses: list[float], lag: float
) -> None:
    """A client's bundle and a standby's certificate may each be ``lag`` days old."""
    now, found, published = NOW, credentials_of({}), b""
    history: list[tuple[datetime, Credentials]] = []
    for pause in pauses:
        found = complete(found, NAMES, now, published, new_term=False)
        published = found.authorities.bundle
        history.append((now, found))
        recent = [each for time, each in history if now - time <= lag * DAY]
        for client in recent:
            for server in recent:
                assert verifies(client.authorities.bundle, server.serving)
        end = x509.load_pem_x509_certificate(found.serving.certificate).not_valid_after_utc
        assert now < end
        now += pause * DAY
    keys = {each.authorities.current.key for _, each in history}
    assert len(keys) == 1 or now - NOW >= AUTHORITY_LIFE - RENEWAL


def test_two_years_day_by_day() -> None:
    found, published = credentials_of({}), b""
    history: list[Credentials] = []
    for day in range(730):
        found = complete(found, NAMES, NOW + day * DAY, published, new_term=False)
        published = found.authorities.bundle
        history.append(found)
        old = history[-(OVERLAP // DAY) :][0]
        assert verifies(old.authorities.bundle, found.serving)
        assert verifies(found.authorities.bundle, old.serving)
    assert len({each.authorities.current.key for each in history}) == 3
    assert max(each.authorities.bundle.count(b"BEGIN") for each in history) == 2


def test_a_handshake_with_the_bundle_of_any_moment(tmp_path: Path) -> None:
    """Python's TLS, and so OpenSSL, finds the right one of two authorities of one name."""
    now = datetime.now(UTC)
    first, second = new_authority(now), new_authority(now)
    before, after = new_serving(first, NAMES, now), new_serving(second, NAMES, now)
    both = Authorities(first, second)
    turned = Authorities(second, NOTHING, first.certificate)
    for bundle in (both.bundle, turned.bundle):
        client = ssl.create_default_context(cadata=bundle.decode())
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        for serving in (before, after):
            file = tmp_path / "pair.pem"
            file.write_bytes(serving.key + serving.certificate)
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(file)
            _shake_hands(client, server)


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="operator")
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
