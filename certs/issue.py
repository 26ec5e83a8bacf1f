"""Makes an authority, and serving certificates signed by it; writes them to a directory.

Only this module and :mod:`certs.reading` import the cryptography library. Their arguments and
results are PEM bytes or our own dataclasses.
"""

import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.errors import CertsError
from certs.names import CertificateSubject

SKEW = timedelta(minutes=5)
"""Certificates start this much earlier, for nodes whose clocks run behind."""

_SECRET_MODE, _PUBLIC_MODE = 0o600, 0o644

_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key.

    Attributes:
        certificate: PEM.
        key: PEM, PKCS #8, not encrypted; not in ``repr``, and so not in logs.
    """

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Issued:
    """The result of :func:`issue`.

    Attributes:
        authority: the CA; the API server must trust its certificate.
        serving: the webhook's certificate.
    """

    authority: KeyPair
    serving: KeyPair

    def write(self, directory: Path, *, force: bool = False) -> None:
        """Write both to *directory*, with the file names of a TLS Secret.

        The directory is created if it is missing. Every file appears completely or not at all, and
        keys are never readable by others. *force* replaces existing files.

        Raises:
            CertsError: a file exists (and *force* is not set), or cannot be written.
        """
        contents = {
            "ca.crt": (self.authority.certificate, _PUBLIC_MODE),
            "ca.key": (self.authority.key, _SECRET_MODE),
            "tls.crt": (self.serving.certificate, _PUBLIC_MODE),
            "tls.key": (self.serving.key, _SECRET_MODE),
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            there = [name for name in contents if os.path.lexists(directory / name)]
            if there and not force:
                raise CertsError(
                    f"{directory} already has {', '.join(there)}: give --force to replace"
                )
            for name, (content, mode) in contents.items():
                _replace(directory / name, content, mode)
        except OSError as error:
            raise CertsError(f"{error.filename or directory}: {error.strerror}") from error


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace *path* by a new file, which is created with its mode."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # left by a process that was killed
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - wraps a descriptor, there is no path
        file.write(content)
    new.replace(path)


def issue(subject: CertificateSubject, *, now: datetime) -> Issued:
    """Make a new authority and a serving certificate signed by it.

    Both expire together. The authority signs nothing else, so a longer validity would only give
    more time to steal its key. *now* has a time zone.
    """
    authority = make_authority(now=now, days=subject.days)
    return Issued(authority, sign_serving(authority, subject, now=now))


def make_authority(*, now: datetime, days: int) -> KeyPair:
    """Make a self-signed authority that may sign serving certificates, but no further CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The number in the name distinguishes two authorities while a rotation trusts both.
    name = _name(f"gpu-turnstile webhook CA {serial % 2**32:08x}")
    start, end = _validity(now, days)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), serial)
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return _sign(builder, key, key)


def sign_serving(authority: KeyPair, subject: CertificateSubject, *, now: datetime) -> KeyPair:
    """Make a serving certificate; it expires no later than its authority.

    *authority* was made here, or :func:`certs.reading.read_pair` accepts it.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - as read_pair has it
    start, end = _validity(now, subject.days)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [
        *(x509.DNSName(each) for each in subject.dns),
        *(x509.IPAddress(each) for each in subject.ips),
    ]
    builder = (
        x509.CertificateBuilder(issuer.subject, _name("gpu-turnstile webhook"), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(min(end, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _sign(builder, key, issuer_key)


def _validity(now: datetime, days: int) -> tuple[datetime, datetime]:
    present = now.replace(microsecond=0)  # X.509 counts whole seconds
    return present - SKEW, present + timedelta(days=days)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**(dict.fromkeys(_USAGES, False) | dict.fromkeys(allowed, True)))


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    """Sign a certificate for the public key of *key* with its issuer's key."""
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
    )
    for each in identifiers:
        builder = builder.add_extension(each, critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
