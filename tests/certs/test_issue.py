from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.issue import Issued, KeyPair, issue, make_authority
from certs.names import parse_subject

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
SUBJECT = parse_subject(["localhost"], [], 30)


def _load(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def test_the_authority_may_sign_serving_certificates_and_nothing_below() -> None:
    authority = _load(make_authority(now=NOW, days=3))
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature


def test_the_serving_certificate_has_its_key_usage(issued: Issued) -> None:
    serving, authority = _load(issued.serving), _load(issued.authority)
    extensions = serving.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert not usage.key_encipherment
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "turnstile.example.svc"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    identifier = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    subject_key = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert identifier.key_identifier == subject_key.digest
    key = serving.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_certificates_start_five_minutes_early_and_end_together() -> None:
    made = issue(SUBJECT, now=NOW)
    present = NOW.replace(microsecond=0)
    for pair in (made.authority, made.serving):
        certificate = _load(pair)
        assert certificate.not_valid_before_utc == present - timedelta(minutes=5)
        assert certificate.not_valid_after_utc == present + timedelta(days=30) == made.not_after


def test_serials_and_the_names_of_authorities_differ() -> None:
    one, other = issue(SUBJECT, now=NOW), issue(SUBJECT, now=NOW)
    certificates = [_load(each) for made in (one, other) for each in (made.authority, made.serving)]
    assert len({each.serial_number for each in certificates}) == 4
    assert certificates[0].subject != certificates[2].subject
