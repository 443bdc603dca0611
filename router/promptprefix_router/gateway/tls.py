"""What the gateway door shows to gateways that dial in: a certificate of its own, or files."""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
CLIENT_CA_FILE = "ca.crt"

_NAME = "promptprefix-picker"
_LIFE = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(days=1)


def own_certificate(now: datetime.datetime) -> tuple[bytes, bytes]:
    """Return a new key and a certificate that nobody can verify: it only encrypts. Both are PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def self_signed(now: datetime.datetime) -> ssl.SSLContext:
    """Return the TLS context with a certificate of its own."""
    return _context(*own_certificate(now))


def from_folder(folder: Path, verify_clients: bool) -> ssl.SSLContext:
    """Return the TLS context of a mounted TLS Secret; a renewed one is used by new connections.

    With ``verify_clients`` only who has a certificate of its ``ca.crt`` may dial. Raises `OSError`
    if a file can't be read or is none.
    """
    return _RenewedContext(_Files(folder, verify_clients).context)


class _RenewedContext(ssl.SSLContext):
    """Stands for the context of the moment: servers wrap each connection by `wrap_bio`."""

    def __new__(cls, _current: Callable[[], ssl.SSLContext]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: Callable[[], ssl.SSLContext]) -> None:
        self._current = current

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Wrap a new connection."""
        return self._current().wrap_bio(*arguments, **options)


class _Files:
    def __init__(self, folder: Path, verify_clients: bool) -> None:
        self._folder = folder
        self._verify_clients = verify_clients
        self._log = structlog.get_logger("gateway-tls")
        self._seen = self._read()
        self._made = _context(*self._seen)

    def context(self) -> ssl.SSLContext:
        """Return the context of the files as they are; that before where they are no good."""
        try:
            read = self._read()
            if read != self._seen:
                self._made, self._seen = _context(*read), read
        except OSError as error:  # `ssl.SSLError` is one
            self._log.warning("certificate can't be read", error=type(error).__name__)
        return self._made

    def _read(self) -> tuple[bytes, ...]:
        names = [KEY_FILE, CERTIFICATE_FILE]
        if self._verify_clients:
            names.append(CLIENT_CA_FILE)
        return tuple((self._folder / name).read_bytes() for name in names)


def _context(key: bytes, chain: bytes, client_ca: bytes | None = None) -> ssl.SSLContext:
    """Return a server's context. Raises `ssl.SSLError` for what is no key or no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    # Python reads keys from files only; this one is in memory.
    file = os.memfd_create("promptprefix-tls", os.MFD_CLOEXEC)
    try:
        os.write(file, key + b"\n" + chain)
        context.load_cert_chain(f"/proc/self/fd/{file}", password=lambda: "")
    finally:
        os.close(file)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    return context
