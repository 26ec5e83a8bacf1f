from pathlib import Path

import pytest

from webhook import __main__ as command
from webhook.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What would have been served."""
    served: list[Settings] = []
    monkeypatch.setattr(command, "serve", served.append)
    monkeypatch.setattr("webhook.logs.configure", lambda: None)
    return served


FLAGS = ("port", "host", "cert", "key", "domain", "workers", "threads")


def test_defaults_are_what_the_help_says(served: list[Settings]) -> None:
    assert command.main(["--cert", "c", "--key", "k"]) == 0
    (settings,) = served
    assert settings.address == "0.0.0.0:8443"
    assert (settings.cert, settings.key) == (Path("c"), Path("k"))
    assert settings.names.domain == "tencent.com"
    assert (settings.workers, settings.threads) == (2, 8)


def test_every_flag_is_an_environment_variable(
    served: list[Settings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = dict(zip(FLAGS, ("443", "::1", "c", "k", "gpu.example", "3", "4"), strict=True))
    variables = {
        flag: f"GPU_TURNSTILE_{'' if flag == 'domain' else 'WEBHOOK_'}{flag.upper()}"
        for flag in FLAGS
    }
    for flag, variable in variables.items():
        monkeypatch.setenv(variable, values[flag])
    assert command.main([]) == 0
    (settings,) = served
    assert settings.address == "[::1]:443"
    assert settings.names.domain == "gpu.example"
    assert (settings.workers, settings.threads) == (3, 4)
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    for flag, variable in variables.items():
        assert f"--{flag} " in text
        assert variable in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "webhook: error: Missing option '--cert'"),
        (["--cert", "c"], "webhook: error: Missing option '--key'"),
        (
            ["--cert", "c", "--key", "k", "--port", "0"],
            "webhook: error: Invalid value for '--port'",
        ),
        (
            ["--cert", "c", "--key", "k", "--workers", "no"],
            "webhook: error: Invalid value for '--w",
        ),
        (["--nonsense"], "webhook: error: No such option"),
        (
            ["--cert", "c", "--key", "k", "--domain", "A_b"],
            'webhook: error: --domain: Invalid value: "A_b": must be a lower-case DNS name',
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    served: list[Settings],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert (captured.err.count("\n"), captured.out, served) == (1, "", [])


def test_files_that_cannot_be_used_stop_the_start(
    certificates: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.logs.configure", lambda: None)
    cert, key = certificates / "tls.crt", certificates / "missing"
    assert command.main(["--cert", str(cert), "--key", str(key)]) == 2
    assert capsys.readouterr().err == (
        f"webhook: error: --key {key}: cannot be read: No such file or directory\n"
    )
