"""Names, and certificates as they are made, written to files and read."""

import os
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from certs.errors import CertsError, InvalidCertificate, InvalidField
from certs.issue import Issued, KeyPair, issue, make_authority, sign_serving
from certs.names import parse_dns_name, parse_ip, parse_subject
from certs.reading import is_issued_by, read_bundle, read_certificate, read_pair
from tests.certs.fakes import START

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
NAMES = ["ca.crt", "ca.key", "tls.crt", "tls.key"]
SUBJECT = parse_subject(["localhost"], [], 30)


def _load(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def test_the_authority_may_sign_serving_certificates_and_no_authority() -> None:
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


def test_serials_and_the_names_of_authorities_differ() -> None:
    one, other = issue(SUBJECT, now=NOW), issue(SUBJECT, now=NOW)
    certificates = [_load(each) for made in (one, other) for each in (made.authority, made.serving)]
    assert len({each.serial_number for each in certificates}) == 4
    assert certificates[0].subject != certificates[2].subject


def test_a_key_is_private_from_the_moment_its_file_exists(
    issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with umask 0; each file is checked while it is still empty."""
    seen: dict[str, int] = {}
    real_open = os.open

    def spy(path: str | Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        status = os.fstat(descriptor)
        assert status.st_size == 0
        seen[Path(path).name] = stat.S_IMODE(status.st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    before = os.umask(0)
    try:
        issued.write(tmp_path)
    finally:
        os.umask(before)
    modes = (0o644, 0o600, 0o644, 0o600)
    assert seen == {f".{name}.new": mode for name, mode in zip(NAMES, modes, strict=True)}


def test_a_dangling_link_is_an_existing_file(issued: Issued, tmp_path: Path) -> None:
    (tmp_path / "tls.key").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CertsError, match=r"already has tls\.key"):
        issued.write(tmp_path)


def test_force_replaces_a_link_and_not_the_file_it_points_to(
    issued: Issued, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "tls.key").symlink_to(elsewhere)
    (out / ".tls.key.new").touch()  # what a writer that was killed left
    issued.write(out, force=True)
    assert elsewhere.read_bytes() == b"mine"
    assert not (out / "tls.key").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == NAMES


def test_a_path_that_is_no_directory_is_one_clear_error(issued: Issued, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(CertsError) as caught:
        issued.write(path)
    assert str(caught.value) == f"{path}: File exists"


def test_a_certificate_has_its_names_and_validity(issued: Issued) -> None:
    serving = read_certificate(issued.serving.certificate)
    assert serving.names == {"localhost", "turnstile.example.svc", "127.0.0.1"}
    assert not serving.is_authority
    assert serving.not_after == read_certificate(issued.authority.certificate).not_after
    authority = read_certificate(issued.authority.certificate)
    assert authority.is_authority
    assert authority.names == set()
    assert authority.fingerprint != serving.fingerprint


def test_a_certificate_is_renewed_at_two_thirds_of_its_validity() -> None:
    found = read_certificate(make_authority(now=START, days=3).certificate)
    start = START - timedelta(minutes=5)
    assert found.renew_at == start + (START + timedelta(days=3) - start) * 2 / 3
    assert not found.is_valid_at(start - timedelta(seconds=1))
    assert found.is_valid_at(start)
    assert found.is_valid_at(START + timedelta(days=3))
    assert not found.is_valid_at(START + timedelta(days=3, seconds=1))


def test_only_the_authority_that_signed_is_the_issuer(issued: Issued) -> None:
    serving = read_certificate(issued.serving.certificate)
    assert is_issued_by(serving, read_certificate(issued.authority.certificate))
    assert not is_issued_by(serving, serving)
    other = read_certificate(make_authority(now=START, days=1).certificate)
    assert not is_issued_by(serving, other)


def test_a_serving_certificate_ends_with_its_authority() -> None:
    authority = make_authority(now=START, days=3)
    serving = sign_serving(authority, parse_subject(["a"], [], 90), now=START + timedelta(days=1))
    found = read_certificate(serving.certificate)
    assert found.not_before == START + timedelta(days=1, minutes=-5)
    assert found.not_after == START + timedelta(days=3)


def test_only_authorities_of_a_bundle_are_read_and_each_once(issued: Issued) -> None:
    authority = issued.authority.certificate
    broken = b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    text = b"# ours\n" + broken + authority + issued.serving.certificate + b"junk" + authority
    assert read_bundle(text) == (read_certificate(authority),)


@given(st.binary())
def test_bytes_that_are_no_bundle_have_no_authority(content: bytes) -> None:
    assert read_bundle(content) == ()


def test_a_pair_belongs_together(issued: Issued) -> None:
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    for pair in (issued.authority, issued.serving):
        assert read_pair(pair) == read_certificate(pair.certificate)
    good, other = issued.serving, issue(parse_subject(["x"], [], 1), now=START).serving
    for pair, message in (
        (KeyPair(b"", good.key), "not a PEM certificate"),
        (KeyPair(good.certificate, b""), "its key is not an unencrypted PEM private key"),
        (KeyPair(good.certificate, other.key), "certificate and key do not belong together"),
        (KeyPair(good.certificate, rsa_key), "certificate and key do not belong together"),
        (KeyPair(issued.authority.certificate, rsa_key), "its key is not an elliptic-curve key"),
    ):
        with pytest.raises(InvalidCertificate) as caught:
            read_pair(pair)
        assert str(caught.value) == message


def test_the_certificate_itself_does_not_show_in_repr(issued: Issued) -> None:
    assert "BEGIN" not in repr(read_certificate(issued.serving.certificate))


@pytest.mark.parametrize(
    "text", ["localhost", "Webhook.Example.SVC", "a-b.c9", "*.example.svc", "x" * 63 + ".svc"]
)
def test_a_good_dns_name_is_read_in_lower_case(text: str) -> None:
    assert parse_dns_name(text) == text.lower()


RULE = (
    "must be at most 253 characters: labels of 1 to 63 letters, digits and inner hyphens, "
    "joined by dots"
)


IP = "must be an IPv4 or IPv6 address"


@pytest.mark.parametrize(
    ("dns", "ip", "days", "message"),
    [
        *(
            (text, "::1", 1, f"dns: Invalid value: {text!r}: {RULE}")
            for text in ("", "a_b", "a..b", "a.", "-a", "*", "*.svc", "a.*.svc", "a\n", "x" * 64)
        ),
        ("hütte", "::1", 1, f"dns: Invalid value: 'hütte': {RULE}"),
        ("a." * 126 + "ab", "::1", 1, f"dns: Invalid value: '{'a.' * 38}a...': {RULE}"),
        (
            *("10.0.0.1", "::1", 1),
            "dns: Invalid value: '10.0.0.1': is an address: give it as an IP address instead",
        ),
        *(
            ("a", text, 1, f"ip: Invalid value: '{text}': {IP}")
            for text in ("", "256.0.0.1", "localhost", "10.0.0.0/8")
        ),
        ("a", "fe80::1%eth0", 1, "ip: Invalid value: 'fe80::1%eth0': must not name an interface"),
        ("a", "::1", 0, "days: Invalid value: 0: must be 1 to 3650"),
        ("a", "::1", 3651, "days: Invalid value: 3651: must be 1 to 3650"),
        (None, None, 1, "dns: Invalid value: '': give at least one DNS name or IP address"),
    ],
)
def test_a_bad_subject_is_refused_with_field_value_and_rule(
    dns: str | None, ip: str | None, days: int, message: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_subject([dns] if dns is not None else [], [ip] if ip is not None else [], days)
    assert str(caught.value) == message


def test_duplicates_are_dropped_and_the_order_is_kept() -> None:
    subject = parse_subject(["b", "a", "B"], ["::1", "127.0.0.1", "0:0:0:0:0:0:0:1"], 1)
    assert subject.dns == ("b", "a")
    assert [str(each) for each in subject.ips] == ["::1", "127.0.0.1"]


@given(st.text())
def test_any_text_raises_no_other_error(text: str) -> None:
    for parse in (parse_dns_name, parse_ip):
        with suppress(InvalidField):
            parse(text)
