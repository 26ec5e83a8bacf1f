import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.errors import CertsError
from certs.issue import Issued, KeyPair, issue, make_authority
from certs.names import parse_subject

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


def test_certificates_start_five_minutes_early_and_end_together() -> None:
    made = issue(SUBJECT, now=NOW)
    present = NOW.replace(microsecond=0)
    for pair in (made.authority, made.serving):
        certificate = _load(pair)
        assert certificate.not_valid_before_utc == present - timedelta(minutes=5)
        assert certificate.not_valid_after_utc == present + timedelta(days=30)


def test_serials_and_the_names_of_authorities_differ() -> None:
    one, other = issue(SUBJECT, now=NOW), issue(SUBJECT, now=NOW)
    certificates = [_load(each) for made in (one, other) for each in (made.authority, made.serving)]
    assert len({each.serial_number for each in certificates}) == 4
    assert certificates[0].subject != certificates[2].subject


# --- files ----------------------------------------------------------------------------


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
