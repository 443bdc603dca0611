"""Whose certificate is verified."""

from __future__ import annotations

import ssl

import pytest

from promptprefix_sidecar.engine_tls import engine_tls


@pytest.mark.parametrize(
    ("host", "pod_ip", "verified"),
    [
        ("127.0.0.1", "10.0.0.7", False),
        ("127.9.9.9", "10.0.0.7", False),
        ("localhost", "10.0.0.7", False),
        ("[::1]", "10.0.0.7", False),
        ("10.0.0.7", "10.0.0.7", False),
        ("[fd00::7]", "fd00:0::7", False),
        ("10.0.0.8", "10.0.0.7", True),
        ("localhost.example", "10.0.0.7", True),
        ("engine.ml.svc", "10.0.0.7", True),
        ("10.0.0.7", "not-an-address", True),
    ],
)
def test_only_what_leaves_the_pod_is_verified(host: str, pod_ip: str, verified: bool) -> None:
    context = engine_tls(host, pod_ip)
    assert context.check_hostname is verified
    assert (context.verify_mode is ssl.CERT_REQUIRED) is verified
