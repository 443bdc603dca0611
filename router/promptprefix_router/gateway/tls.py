"""What the gateway door shows to gateways that dial in: a certificate of its own, or files."""

from __future__ import annotations

import datetime
from pathlib import Path

import grpc
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


def self_signed(now: datetime.datetime) -> grpc.ServerCredentials:
    """Return credentials with a new certificate that nobody can verify: it only encrypts."""
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
    return grpc.ssl_server_credentials(
        [(key_pem, certificate.public_bytes(serialization.Encoding.PEM))]
    )


def from_folder(folder: Path, verify_clients: bool) -> grpc.ServerCredentials:
    """Return credentials from a mounted TLS Secret; a renewed one is used by new connections.

    With ``verify_clients`` only who has a certificate of its ``ca.crt`` may dial. Raises `OSError`
    if a file can't be read.
    """
    files = _Files(folder, verify_clients)
    return grpc.dynamic_ssl_server_credentials(files.load(), files.renewed, verify_clients)


class _Files:
    def __init__(self, folder: Path, verify_clients: bool) -> None:
        self._folder = folder
        self._verify_clients = verify_clients
        self._seen: tuple[bytes, ...] = ()
        self._log = structlog.get_logger("gateway-tls")

    def load(self) -> grpc.ServerCertificateConfiguration:
        self._seen = self._read()
        return _configuration(*self._seen)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a changed configuration, None to keep the one in force.

        gRPC calls this at each handshake, on a thread of its own.
        """
        try:
            read = self._read()
        except OSError as error:
            self._log.warning("certificate can't be read", error=type(error).__name__)
            return None
        if read == self._seen:
            return None
        self._seen = read
        return _configuration(*read)

    def _read(self) -> tuple[bytes, ...]:
        names = [KEY_FILE, CERTIFICATE_FILE]
        if self._verify_clients:
            names.append(CLIENT_CA_FILE)
        return tuple((self._folder / name).read_bytes() for name in names)


def _configuration(
    key: bytes, chain: bytes, client_ca: bytes | None = None
) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca)
