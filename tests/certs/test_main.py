import base64
from pathlib import Path

import pytest

from certs.__main__ import main


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


def test_issue_then_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["issue", "--out", out, "--dns", "localhost", "--ip", "::1", "--days", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ca.crt ca.key tls.crt tls.key, valid until ")
    assert main(["bundle", "--in", out]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert base64.b64decode(printed).startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file or directory"), ("junk", "has no CA certificate")],
)
def test_an_invalid_bundle_is_refused_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    assert main(["bundle", "--in", str(tmp_path)]) == 1
    assert _error(capsys) == f"certs: error: {path}: {message}"


def test_issue_refuses_to_overwrite_until_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["issue", "--out", str(tmp_path), "--dns", "localhost"]
    assert main(arguments) == 0
    before = (tmp_path / "tls.key").read_bytes()
    capsys.readouterr()
    assert main(arguments) == 1
    assert _error(capsys) == (
        f"certs: error: {tmp_path} already has ca.crt, ca.key, tls.crt, tls.key: "
        "give --force to replace"
    )
    assert (tmp_path / "tls.key").read_bytes() == before
    assert main([*arguments, "--force"]) == 0
    assert (tmp_path / "tls.key").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "certs: error: Missing command."),
        (["renew"], 2, "certs: error: No such command 'renew'."),
        (["issue", "--dns", "x"], 2, "certs: error: Missing option '--out'"),
        (["issue", "OUT", "--days", "x"], 2, "certs: error: Invalid value for '--days'"),
        (["issue", "OUT"], 1, "certs: error: dns: Invalid value: ''"),
        (["issue", "OUT", "--dns", "a_b"], 1, "certs: error: dns: Invalid value: 'a_b'"),
        (["issue", "OUT", "--ip", "1"], 1, "certs: error: ip: Invalid value: '1'"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    out = ["--out", str(tmp_path / "out")] if "OUT" in arguments else []
    assert main([each for each in arguments if each != "OUT"] + out) == status
    assert _error(capsys).startswith(message)
    assert not (tmp_path / "out").exists()
