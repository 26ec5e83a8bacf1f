import logging
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from certs.issue import issue
from certs.names import parse_subject
from common.errors import SettingsError
from common.serving.tls import Files, ReloadResult, ServedCertificate, not_after, server_context


def _encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_a_pair_that_cannot_be_used_is_one_clear_line(certificates: Path, tmp_path: Path) -> None:
    cert, key = certificates / "tls.crt", certificates / "tls.key"
    junk, hollow, locked = (tmp_path / name for name in ("junk", "hollow.crt", "locked.key"))
    junk.write_bytes(b"junk")
    hollow.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    locked.write_bytes(_encrypted(key.read_bytes()))
    missing = tmp_path / "missing"
    table = [
        (missing, key, f"--cert {missing}: cannot be read: No such file or directory"),
        (cert, missing, f"--key {missing}: cannot be read: No such file or directory"),
        (tmp_path, key, f"--cert {tmp_path}: cannot be read: Is a directory"),
        (junk, key, f"--cert {junk}: is not a PEM certificate"),
        (key, key, f"--cert {key}: is not a PEM certificate"),
        (cert, cert, f"--key {cert}: is not a PEM private key"),
        (
            cert,
            certificates / "ca.key",
            (
                f"--cert {cert} --key {certificates / 'ca.key'}: "
                "certificate and key do not belong together"
            ),
        ),
    ]
    for one, other, message in table:
        with pytest.raises(SettingsError) as caught:
            server_context(Files(one, other))
        assert str(caught.value) == message
    for one, other in ((hollow, key), (cert, locked)):
        with pytest.raises(SettingsError) as caught:
            server_context(Files(one, other))
        # What follows is OpenSSL's word, which differs between its releases.
        assert str(caught.value).startswith(f"--cert {one} --key {other}: cannot be used: ")
        assert "\n" not in str(caught.value)


def test_a_client_ca_that_cannot_be_used_is_one_clear_line(
    certificates: Path, tmp_path: Path
) -> None:
    cert, key = certificates / "tls.crt", certificates / "tls.key"
    junk, hollow, missing = (tmp_path / name for name in ("junk", "hollow.crt", "missing"))
    junk.write_bytes(b"junk")
    hollow.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for authority, message in (
        (junk, f"--client-ca {junk}: is not a PEM certificate"),
        (missing, f"--client-ca {missing}: cannot be read: No such file or directory"),
        (hollow, f"--client-ca {hollow}: cannot be used: "),
    ):
        with pytest.raises(SettingsError) as caught:
            server_context(Files(cert, key, authority))
        assert str(caught.value).startswith(message)


def test_a_file_that_goes_while_it_is_used_is_one_clear_line(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificates / "tls.crt", certificates / "tls.key"

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    files = Files(cert, key, certificates / "ca.crt")
    for method, named in (
        ("load_verify_locations", f"--client-ca {files.client_ca}"),
        ("load_cert_chain", f"--cert {cert} --key {key}"),
    ):
        monkeypatch.setattr(f"ssl.SSLContext.{method}", gone)
        with pytest.raises(SettingsError) as caught:
            server_context(files)
        assert str(caught.value) == f"{named}: No such file or directory"


class Mount:
    """A Secret as the kubelet mounts it: files are links into what one link points to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._version = 0
        self.replace()
        for name in ("tls.crt", "tls.key"):
            (root / name).symlink_to(Path("..data") / name)
        self.files = Files(root / "tls.crt", root / "tls.key")

    def replace(self, change: Callable[[Path], None] = lambda _: None) -> None:
        self._version += 1
        folder = self.root / f"..v{self._version}"
        folder.mkdir()
        subject = parse_subject(["localhost"], [], self._version)
        issue(subject, now=datetime.now(UTC)).write(folder)
        change(folder)
        link = self.root / "..next"
        link.symlink_to(folder.name)
        os.replace(link, self.root / "..data")  # noqa: PTH105 - as the kubelet does


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


def test_a_new_pair_replaces_the_old_one_for_new_connections(mount: Mount) -> None:
    certificate = ServedCertificate(mount.files)
    context, expires = certificate.context, certificate.expires
    assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is context
    mount.replace()
    assert certificate.refresh() is ReloadResult.LOADED
    assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is not context
    assert certificate.expires - expires == pytest.approx(86400, abs=60)


@pytest.mark.parametrize(
    "damaged",
    [
        ("tls.crt", b"junk", "is not a PEM certificate"),
        ("tls.key", b"", "is not a PEM private key"),
        ("tls.crt", None, "cannot be read: No such file or directory"),
        ("tls.key", "other", "certificate and key do not belong together"),
    ],
)
def test_a_broken_pair_is_refused_once_and_the_one_before_serves_on(
    mount: Mount,
    damaged: tuple[str, bytes | str | None, str],
    caplog: pytest.LogCaptureFixture,
    certificates: Path,
) -> None:
    name, content, reason = damaged
    certificate = ServedCertificate(mount.files)
    first = certificate.context

    def damage(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            other = (certificates / name).read_bytes()
            (folder / name).write_bytes(other if isinstance(content, str) else content)

    mount.replace(damage)
    with caplog.at_level(logging.ERROR, "webhook"):
        assert certificate.refresh() is ReloadResult.REFUSED
        assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is first
    (record,) = caplog.records
    assert reason in vars(record)["reason"]
    mount.replace()
    assert certificate.refresh() is ReloadResult.LOADED
    assert certificate.context is not first


def test_the_end_of_the_first_certificate_is_read() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    issued = issue(parse_subject(["localhost"], [], 7), now=now)
    expected = (now + timedelta(days=7)).timestamp()
    assert not_after(issued.serving.certificate) == pytest.approx(expected, abs=60)


@pytest.mark.parametrize(
    "error", [x509.InvalidVersion("x", 9), UnsupportedAlgorithm("x"), ValueError("x")]
)
def test_a_certificate_that_cryptography_cannot_read_has_no_known_end(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: bytes) -> None:
        raise error

    monkeypatch.setattr(x509, "load_pem_x509_certificate", fail)
    assert math.isnan(not_after(b""))
