"""Certificates made: an authority, and serving certificates it signs.

With :mod:`certs.reading` the only module that knows the cryptography library.
Everything goes in and comes out as PEM bytes or our own dataclasses, so that a store
never needs the library.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.names import Subject

SKEW = timedelta(minutes=5)
"""Certificates start this much earlier, for nodes whose clocks run behind."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key.

    Attributes:
        certificate: PEM.
        key: PEM, PKCS #8, not encrypted; kept out of ``repr`` and so out of logs.
    """

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"KeyPair({len(self.certificate)} bytes of certificate)"


@dataclass(frozen=True, slots=True)
class Issued:
    """The certificates of one issue.

    Attributes:
        authority: the CA; its certificate is what the API server must trust.
        serving: what the webhook presents.
        not_after: when both end.
    """

    authority: KeyPair
    serving: KeyPair
    not_after: datetime


def issue(subject: Subject, *, now: datetime) -> Issued:
    """Make a new authority and a serving certificate under it.

    Both end together: the authority signs nothing else, and a longer life would
    only be a longer time to lose its key in.

    Args:
        subject: whom the serving certificate names.
        now: the present, with a time zone.
    """
    authority = make_authority(now=now, days=subject.days)
    serving = sign_serving(authority, subject, now=now)
    return Issued(authority, serving, _life(now, subject.days)[1])


def make_authority(*, now: datetime, days: int) -> KeyPair:
    """Make a self-signed authority that may sign serving certificates and nothing below them."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The number in the name keeps two authorities apart while a rotation trusts both.
    name = _name(f"gpu-turnstile webhook CA {serial % 2**32:08x}")
    builder = (
        _begin(name, name, key.public_key(), _life(now, days))
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def sign_serving(authority: KeyPair, subject: Subject, *, now: datetime) -> KeyPair:
    """Make a serving certificate under an authority; it ends with the authority at the latest.

    Args:
        authority: a pair of ours, or one that :func:`certs.reading.read_pair` has read.
        subject: whom it names, and for how long.
        now: the present.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - as read_pair has it
    not_before, not_after = _life(now, subject.days)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    names = [
        *(x509.DNSName(each) for each in subject.dns),
        *(x509.IPAddress(each) for each in subject.ips),
    ]
    builder = (
        _begin(
            _name("gpu-turnstile webhook"),
            issuer.subject,
            key.public_key(),
            (not_before, min(not_after, issuer.not_valid_after_utc)),
        )
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    life: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    not_before, not_after = life
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _life(now: datetime, days: int) -> tuple[datetime, datetime]:
    present = now.replace(microsecond=0)  # X.509 counts whole seconds
    return present - SKEW, present + timedelta(days=days)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
