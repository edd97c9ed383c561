"""Certificates for one machine: an authority, and what it signs for a broker and for a client.

For development and tests. With `ca.key`, a certificate for any name can be made, and clients that trust `ca.pem` accept
it: a real authority keeps its key elsewhere.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
ORGANIZATION = "Penstock development"
VALID_DAYS = 825
"""Clients on Apple's systems accept no certificate that is valid for longer."""
CLOCK_SKEW = timedelta(days=1)
"""Certificates begin to be valid so long ago: a container or virtual machine may have another clock."""


class DevCertificates:
    """The files of a folder. An authority that is there already stays, so that clients need not be told again."""

    def __init__(self, folder: Path, *, days: int = VALID_DAYS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._days = days
        self.ca = folder / "ca.pem"
        self.ca_key = folder / "ca.key"
        self.is_new = not (self.ca.exists() and self.ca_key.exists())
        """Whether the authority was made now."""
        if self.is_new:
            self._make_authority()
        self._authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        self._signer = _load_key(self.ca_key)

    def issue(self, name: str, *, common_name: str, hosts: Iterable[str] = ()) -> tuple[Path, Path]:
        """Writes `name.pem` and `name.key`; replaces those that are there. The certificate serves both sides of a
        connection, as nodes need it."""
        key = generate_private_key(SECP256R1())
        builder = self._builder(_subject(common_name), key)
        builder = builder.issuer_name(self._authority.subject)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._signer.public_key())
        builder = builder.add_extension(authority, critical=False)
        names = [_alternative(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        certificate = builder.sign(self._signer, hashes.SHA256())
        return self._write(name, certificate, key)

    def _make_authority(self) -> None:
        key = generate_private_key(SECP256R1())
        subject = _subject("Penstock development CA")
        builder = self._builder(subject, key).issuer_name(subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_signs_certificates(), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        self._write("ca", builder.sign(key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=self._days))
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
    ) -> tuple[Path, Path]:
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _write_secret(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        cert_file.write_bytes(certificate.public_bytes(Encoding.PEM))
        return cert_file, key_file


def _load_key(path: Path) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError(f"{path}: expected the key of an authority that this command has made")
    return key


def _write_secret(path: Path, data: bytes) -> None:
    """Only this user can read the file, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _subject(common_name: str) -> x509.Name:
    names = [(NameOID.ORGANIZATION_NAME, ORGANIZATION), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in names])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
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
