import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority whose files and certificates lie in one folder."""

    folder: Path
    files: KeyPair
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, name: str) -> "Authority":
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name, None)
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(folder, _write(folder, name, certificate, key), certificate, key)

    def issue(
        self,
        name: str,
        common_name: str,
        organization: str | None = None,
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """Issue a certificate for a client and, when it has hosts, for a server as well."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(
            _name(common_name, organization), self.certificate.subject, key.public_key()
        )
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return _write(self.folder, name, certificate, key)


def service_account_keys(folder: Path) -> KeyPair:
    """A key for signing tokens; in place of a certificate there is the bare public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = folder / "service-account.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return KeyPair(public, _write_key(folder / "service-account.key", key))


def write_kubeconfig(file: Path, server: str, authority: KeyPair, client: KeyPair) -> Path:
    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    name = "promptprefix"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": encoded(authority.certificate),
                },
            }
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": encoded(client.certificate),
                    "client-key-data": encoded(client.key),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    _write_private(file, json.dumps(config, indent=1).encode())
    return file


def _name(common_name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    file = folder / f"{name}.crt"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return KeyPair(file, _write_key(folder / f"{name}.key", key))


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Path:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_private(file, content)
    return file


def _write_private(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
