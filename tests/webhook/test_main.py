from pathlib import Path

import pytest

from common.errors import SettingsError
from contract.other_systems import Dialect
from webhook import __main__ as command
from webhook.__main__ import application
from webhook.admission.claims import Claims
from webhook.admission.options import DefaultMemory
from webhook.admission.privileged import Privileged
from webhook.settings import Files, Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    served: list[Settings] = []
    monkeypatch.setattr(command, "serve", served.append)
    monkeypatch.setattr("webhook.__main__.configure", lambda: None)
    return served


PAIR = ("--cert", "c", "--key", "k")
VALUES = {
    "port": "443",
    "host": "::1",
    "cert": "c",
    "key": "k",
    "domain": "gpu.example",
    "connections": "50",
    "client-ca": "ca",
    "largest-card": "96",
    "default-memory": "proportional",
    "scheduler-name": "gpu-turnstile-scheduler",
    "runtime-class": "nvidia",
    "privileged": "deny",
    "accept": "hami, nvidia",
    "memory-block": "1Mi",
    "claims": "on",
    "drain-delay": "0.5",
}


def test_every_flag_is_an_environment_variable(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {
        flag: f"GPU_TURNSTILE_{'' if flag == 'domain' else 'WEBHOOK_'}"
        f"{flag.upper().replace('-', '_')}"
        for flag in VALUES
    }
    for flag, variable in variables.items():
        monkeypatch.setenv(variable, VALUES[flag])
    assert command.main([]) == 0
    (settings,) = served
    assert settings.files == Files(Path("c"), Path("k"), Path("ca"))
    assert settings.names.domain == "gpu.example"
    found = (settings.host, settings.port, settings.connections, settings.drain_delay)
    assert found == ("::1", 443, 50, 0.5)
    options, accepted = settings.options, frozenset({Dialect.HAMI, Dialect.NVIDIA})
    assert (options.largest_card, options.default_memory) == (96, DefaultMemory.PROPORTIONAL)
    assert (options.privileged, options.claims) == (Privileged.DENY, Claims.ON)
    assert (options.accept, options.memory_block) == (accepted, 1 << 20)
    assert options.scheduler_name == "gpu-turnstile-scheduler"
    assert options.runtime_class == "nvidia"
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    for flag, variable in variables.items():
        assert f"--{flag} " in text
        assert variable in text


ACCEPT_IS_WRONG = "Invalid value for '--accept' (env var: 'GPU_TURNSTILE_WEBHOOK_ACCEPT')"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--cert'"),
        (["--cert", "c"], "Missing option '--key'"),
        ([*PAIR, "--scheduler-name", "my scheduler"], "Invalid value for '--scheduler-name'"),
        ([*PAIR, "--runtime-class", "NVIDIA"], "Invalid value for '--runtime-class'"),
        (
            [*PAIR, "--default-memory", "proportional"],
            "--default-memory proportional: needs --largest-card",
        ),
        (
            [*PAIR, "--accept", "hami,run.ai"],
            f"{ACCEPT_IS_WRONG}: 'run.ai' is not one of {', '.join(Dialect)}",
        ),
        (
            [*PAIR, "--accept", "gpushare,gpushare-mib"],
            f"{ACCEPT_IS_WRONG}: gpushare counts GiB, gpushare-mib MiB: accept one of them",
        ),
        (
            [*PAIR, "--claims", "on", "--domain", "a" * 60],
            f'domain: Invalid value: "{"a" * 60}": must have at most 59 characters for claims',
        ),
        ([*PAIR, "--memory-block", "256"], "Invalid value for '--memory-block'"),
        ([*PAIR, "--drain-delay", "16"], "Invalid value for '--drain-delay'"),
        (["--nonsense"], "No such option"),
        ([*PAIR, "--domain", "A_b"], 'domain: Invalid value: "A_b": must be a lower-case DNS name'),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    served: list[Settings], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert command.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"webhook: error: {message}")
    assert (captured.err.count("\n"), captured.out, served) == (1, "", [])


def test_a_separate_gunicorn_verifies_clients_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_TURNSTILE_WEBHOOK_CLIENT_CA", "/ca.crt")
    with pytest.raises(SettingsError, match=r"^--client-ca: not supported here: use gunicorn's "):
        application()
