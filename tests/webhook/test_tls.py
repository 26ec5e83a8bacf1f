import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from webhook.errors import SettingsError
from webhook.tls import server_context


def test_a_good_pair_serves_tls_1_2_and_newer(certificates: Path) -> None:
    context = server_context(certificates / "tls.crt", certificates / "tls.key")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    old = {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert old
    assert all(name.startswith("ECDHE-") for name in old)


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
            server_context(one, other)
        assert str(caught.value) == message
    for one, other in ((hollow, key), (cert, locked)):
        with pytest.raises(SettingsError) as caught:
            server_context(one, other)
        # What follows is OpenSSL's word, which differs between its releases.
        assert str(caught.value).startswith(f"--cert {one} --key {other}: cannot be used: ")
        assert "\n" not in str(caught.value)
