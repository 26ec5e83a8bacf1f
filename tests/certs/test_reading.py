from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.errors import InvalidCertificate
from certs.issue import Issued, KeyPair, issue, make_authority, sign_serving
from certs.names import parse_subject
from certs.reading import is_issued_by, read_bundle, read_certificate, read_pair

NOW = datetime(2030, 1, 1, tzinfo=UTC)


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
    found = read_certificate(make_authority(now=NOW, days=3).certificate)
    start = NOW - timedelta(minutes=5)
    assert found.renew_at == start + (NOW + timedelta(days=3) - start) * 2 / 3
    assert not found.is_valid_at(start - timedelta(seconds=1))
    assert found.is_valid_at(start)
    assert found.is_valid_at(NOW + timedelta(days=3))
    assert not found.is_valid_at(NOW + timedelta(days=3, seconds=1))


def test_only_the_authority_that_signed_is_the_issuer(issued: Issued) -> None:
    serving = read_certificate(issued.serving.certificate)
    assert is_issued_by(serving, read_certificate(issued.authority.certificate))
    assert not is_issued_by(serving, serving)
    other = read_certificate(make_authority(now=NOW, days=1).certificate)
    assert not is_issued_by(serving, other)


def test_a_serving_certificate_ends_with_its_authority() -> None:
    authority = make_authority(now=NOW, days=3)
    serving = sign_serving(authority, parse_subject(["a"], [], 90), now=NOW + timedelta(days=1))
    assert read_certificate(serving.certificate).not_after == NOW + timedelta(days=3)


def test_only_authorities_of_a_bundle_are_read_and_each_once(issued: Issued) -> None:
    authority = issued.authority.certificate
    broken = b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    text = b"# ours\n" + broken + authority + issued.serving.certificate + b"junk" + authority
    assert read_bundle(text) == (read_certificate(authority),)


@given(st.binary())
def test_bytes_that_are_no_bundle_have_no_authority(content: bytes) -> None:
    assert read_bundle(content) == ()


def test_a_pair_belongs_together(issued: Issued, rsa_key: bytes) -> None:
    for pair in (issued.authority, issued.serving):
        assert read_pair(pair) == read_certificate(pair.certificate)
    good, other = issued.serving, issue(parse_subject(["x"], [], 1), now=NOW).serving
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
