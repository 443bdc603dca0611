"""TLS for fakes on loopback: a self-signed certificate, authority and server in one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class LoopbackAuthority:
    """A certificate for 127.0.0.1 in ``folder``; one that is there is kept."""

    folder: Path

    def __post_init__(self) -> None:
        if not self.ca_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()

    @property
    def ca_file(self) -> Path:
        """The certificate that clients trust."""
        return self.folder / "ca.crt"

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file, self._key_file)
        return context

    @property
    def _key_file(self) -> Path:
        return self.folder / "tls.key"

    def _write(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.folder.name[:64])])
        now = datetime.now(UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .sign(key, hashes.SHA256())
        )
        self._key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
