"""Certificates that are served, refused and reloaded."""

import contextlib
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from certs.issue import issue
from certs.names import parse_subject
from common.errors import SettingsError
from common.serving.tls import Files, ReloadResult, ServedCertificate, not_after, server_context
from tests.common.serving.in_process import MountedSecret


def _encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


MISSING = "cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "message"),
    [
        ("missing", "tls.key", "", f"--cert missing: {MISSING}"),
        ("tls.crt", "missing", "", f"--key missing: {MISSING}"),
        (".", "tls.key", "", "--cert .: cannot be read: Is a directory"),
        ("junk", "tls.key", "", "--cert junk: is not a PEM certificate"),
        ("tls.key", "tls.key", "", "--cert tls.key: is not a PEM certificate"),
        ("tls.crt", "tls.crt", "", "--key tls.crt: is not a PEM private key"),
        (
            *("tls.crt", "ca.key", ""),
            "--cert tls.crt --key ca.key: certificate and key do not belong together",
        ),
        # The rest is OpenSSL's text, which differs between its releases.
        ("hollow", "tls.key", "", "--cert hollow --key tls.key: cannot be used: *"),
        ("tls.crt", "locked", "", "--cert tls.crt --key locked: cannot be used: *"),
        ("tls.crt", "tls.key", "junk", "--client-ca junk: is not a PEM certificate"),
        ("tls.crt", "tls.key", "missing", f"--client-ca missing: {MISSING}"),
        ("tls.crt", "tls.key", "hollow", "--client-ca hollow: cannot be used: *"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(
    folder_with_files: Path, cert: str, key: str, client_ca: str, message: str
) -> None:
    paths = Files(Path(cert), Path(key), Path(client_ca) if client_ca else None)
    with contextlib.chdir(folder_with_files), pytest.raises(SettingsError) as caught:
        server_context(paths)
    head, star, _ = message.partition("*")
    assert str(caught.value).startswith(head)
    assert star or str(caught.value) == head
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder_with_files(certificates: Path, tmp_path: Path) -> Path:
    for each in certificates.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    (tmp_path / "junk").write_bytes(b"junk")
    hollow = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (tmp_path / "hollow").write_bytes(hollow)
    (tmp_path / "locked").write_bytes(_encrypted((certificates / "tls.key").read_bytes()))
    return tmp_path


def test_a_file_that_is_deleted_while_it_is_used_is_one_clear_line(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificates / "tls.crt", certificates / "tls.key"

    def deleted(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    files = Files(cert, key, certificates / "ca.crt")
    for method, named in (
        ("load_verify_locations", f"--client-ca {files.client_ca}"),
        ("load_cert_chain", f"--cert {cert} --key {key}"),
    ):
        monkeypatch.setattr(f"ssl.SSLContext.{method}", deleted)
        with pytest.raises(SettingsError) as caught:
            server_context(files)
        assert str(caught.value) == f"{named}: No such file or directory"


class Mount(MountedSecret):
    """A mounted certificate for localhost; each one is valid for a day longer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._days = 0
        self.renew()

    def renew(self, **changes: bytes | None) -> None:
        self._days += 1
        pair = issue(parse_subject(["localhost"], [], self._days), now=datetime.now(UTC)).serving
        content = {"cert": pair.certificate, "key": pair.key} | changes
        names = {"cert": "tls.crt", "key": "tls.key"}
        self.update({names[each]: data for each, data in content.items() if data is not None})


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


def test_a_new_pair_replaces_the_old_one_for_new_connections(mount: Mount) -> None:
    certificate = ServedCertificate(mount.files)
    context, expires = certificate.context, certificate.expires
    assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is context
    mount.renew()
    assert certificate.refresh() is ReloadResult.LOADED
    assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is not context
    assert certificate.expires - expires == pytest.approx(86400, abs=60)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cert", b"junk", "is not a PEM certificate"),
        ("cert", None, "cannot be read: No such file or directory"),
        ("key", b"the earlier one", "certificate and key do not belong together"),
    ],
)
def test_a_broken_pair_is_refused_once_and_the_earlier_one_is_served(
    mount: Mount, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None, reason: str
) -> None:
    certificate = ServedCertificate(mount.files)
    first = certificate.context
    mount.renew(**{name: mount.files.key.read_bytes() if name == "key" else content})
    assert certificate.refresh() is ReloadResult.REFUSED
    assert certificate.refresh() is ReloadResult.NONE
    assert certificate.context is first
    (record,) = caplog.records
    assert reason in vars(record)["reason"]
    mount.renew()
    assert certificate.refresh() is ReloadResult.LOADED
    assert certificate.context is not first


@pytest.mark.parametrize(
    "error", [x509.InvalidVersion("x", 9), UnsupportedAlgorithm("x"), ValueError("x")]
)
def test_a_certificate_that_cryptography_cannot_read_has_no_known_expiry(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: bytes) -> None:
        raise error

    monkeypatch.setattr(x509, "load_pem_x509_certificate", fail)
    assert math.isnan(not_after(b""))
