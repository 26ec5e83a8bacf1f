"""Reads certificates, and checks their keys and authorities. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.errors import InvalidCertificate
from certs.issue import KeyPair

_BLOCK = re.compile(b"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_UNREADABLE = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The content of a certificate.

    Attributes:
        fingerprint: SHA-256 in hexadecimal digits; equal only for equal certificates.
        not_before: start of its validity.
        not_after: end of its validity.
        names: DNS names and addresses in it; empty for an authority.
        is_authority: whether it may sign others.
        pem: the certificate itself.
    """

    fingerprint: str
    not_before: datetime
    not_after: datetime
    names: frozenset[str]
    is_authority: bool
    pem: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.fingerprint[:16]} (until {self.not_after:%Y-%m-%d %H:%M} UTC)"

    @property
    def renew_at(self) -> datetime:
        """The time when two thirds of its validity are over."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3

    def is_valid_at(self, moment: datetime) -> bool:
        """Return whether it is valid at this time."""
        return self.not_before <= moment <= self.not_after


def read_certificate(pem: bytes) -> Certificate:
    """Read the first certificate in *pem*.

    Raises:
        InvalidCertificate: there is none.
    """
    try:
        return _read(x509.load_pem_x509_certificate(pem))
    except _UNREADABLE as error:
        raise InvalidCertificate("not a PEM certificate") from error


def read_bundle(pem: bytes) -> tuple[Certificate, ...]:
    """Read the authorities in *pem*, without duplicates; other content is ignored."""
    found: dict[str, Certificate] = {}
    for block in _BLOCK.findall(pem):
        try:
            certificate = read_certificate(block)
        except InvalidCertificate:
            continue
        if certificate.is_authority:
            found.setdefault(certificate.fingerprint, certificate)
    return tuple(found.values())


def write_bundle(certificates: Iterable[Certificate]) -> bytes:
    """Join certificates to a PEM bundle."""
    return b"".join(each.pem for each in certificates)


def read_pair(pair: KeyPair) -> Certificate:
    """Check that certificate and key belong together, and read the certificate.

    Raises:
        InvalidCertificate: certificate or key cannot be used, or they do not belong together.
    """
    certificate = read_certificate(pair.certificate)
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidCertificate("its key is not an unencrypted PEM private key") from error
    if certificate.is_authority and not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidCertificate("its key is not an elliptic-curve key")
    if key.public_key() != x509.load_pem_x509_certificate(certificate.pem).public_key():
        raise InvalidCertificate("certificate and key do not belong together")
    return certificate


def is_issued_by(certificate: Certificate, authority: Certificate) -> bool:
    """Return whether *authority* has signed *certificate*."""
    try:
        x509.load_pem_x509_certificate(certificate.pem).verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority.pem)
        )
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _read(certificate: x509.Certificate) -> Certificate:
    return Certificate(
        certificate.fingerprint(hashes.SHA256()).hex(),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        frozenset(_names(certificate)),
        _is_authority(certificate),
        certificate.public_bytes(serialization.Encoding.PEM),
    )


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _names(certificate: x509.Certificate) -> Iterable[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.DNSName)
    yield from (str(each) for each in names.get_values_for_type(x509.IPAddress))
