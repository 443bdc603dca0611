"""The control API's own certificate authority and serving certificate (EC P-256)."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=365)
SERVING_LIFE = timedelta(days=90)
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


NOTHING = Pair(b"", b"")


def new_authority(now: datetime) -> Pair:
    """Return a self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "promptprefix control API")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def new_serving(authority: Pair, names: Collection[str], now: datetime) -> Pair:
    """Return a serving certificate for ``names``, signed by ``authority``."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an EC key")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(min(now + SERVING_LIFE, signer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]),
            critical=True,  # as RFC 5280 wants it where the subject is empty
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def validity(certificate: bytes) -> tuple[datetime, datetime] | None:
    """Return when a certificate was made and when it ends; None if it is none."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return None
    return found.not_valid_before_utc + _CLOCK_SKEW, found.not_valid_after_utc


def can_sign(pair: Pair) -> bool:
    """Whether a certificate and a key belong together and are of our kind."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError):
        return False
    return (
        isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()
    )


def serving_usable(pair: Pair, authority: Pair, names: Collection[str], now: datetime) -> bool:
    """Whether the certificate is for exactly ``names``, signed by ``authority``, not near its end.

    Near is the last third of its life.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        key = serialization.load_pem_private_key(pair.key, password=None)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature):
        return False
    if key.public_key() != certificate.public_key():
        return False
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    same = set(found.value) == {_general_name(name) for name in names}
    return same and now < end - (end - begin) / 3


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names under which a Service is reached."""
    return (
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
