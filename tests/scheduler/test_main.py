"""The command line: one line for what cannot be used."""

from pathlib import Path

import pytest

from common.serving.tls import Files
from placement.scoring import Policy
from scheduler import __main__ as program
from scheduler.__main__ import main
from scheduler.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    found: list[Settings] = []
    monkeypatch.setattr(program, "serve", found.append)
    return found


REQUIRED = ("--cert", "tls.crt", "--key", "tls.key")
BESIDE = ("--kube-scheduler-lease", "own")


def test_every_flag_reaches_the_server(served: list[Settings]) -> None:
    flags = [
        *("--port", "9000", "--host", "::1", "--client-ca", "ca.crt", "--kubeconfig", "kc"),
        *("--domain", "example.org", "--policy", "spread", "--node-policy", "spread"),
        *("--lease", "l", "--namespace", "n", "--endpoint-slice", "s", "--address", "10.0.0.7"),
        *("--identity", "me", "--threads", "4"),
    ]
    assert main([*REQUIRED, *flags]) == 0
    (settings,) = served
    assert settings.names.domain == "example.org"
    assert settings.files == Files(Path("tls.crt"), Path("tls.key"), Path("ca.crt"))
    assert settings == Settings(
        host="::1",
        port=9000,
        files=settings.files,
        names=settings.names,
        kubeconfig=Path("kc"),
        policy=Policy.SPREAD,
        node_policy=Policy.SPREAD,
        namespace="n",
        lease="l",
        endpoint_slice="s",
        identity="me",
        address="10.0.0.7",
        threads=4,
    )


def test_settings_come_from_the_environment_too(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_TURNSTILE_SCHEDULER_CERT", "a")
    monkeypatch.setenv("GPU_TURNSTILE_SCHEDULER_KEY", "b")
    monkeypatch.setenv("GPU_TURNSTILE_SCHEDULER_NODE_POLICY", "spread")
    assert main([]) == 0
    assert served[0].files == Files(Path("a"), Path("b"))
    assert served[0].node_policy is Policy.SPREAD
    assert (served[0].host, served[0].port) == ("::", 8444)
    assert served[0].identity


def test_beside_a_kube_scheduler_it_needs_no_certificate(served: list[Settings]) -> None:
    assert main([*BESIDE, "--identity", "pod-0"]) == 0
    (settings,) = served
    assert settings.files is None
    assert (settings.kube_scheduler_lease, settings.identity) == ("own", "pod-0")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--cert: Required value: unless --kube-scheduler-lease is set"),
        (REQUIRED[:2], "--key: Required value"),
        ([*BESIDE, *REQUIRED], "--cert: Forbidden: --kube-scheduler-lease serves HTTP"),
        ([*BESIDE, "--key", "tls.key"], "--key: Forbidden"),
        ([*BESIDE, "--client-ca", "ca.crt"], "--client-ca: Forbidden"),
        ([*BESIDE, "--endpoint-slice", "s"], "--endpoint-slice: Forbidden"),
        ([*REQUIRED, "--domain", "X"], "domain: Invalid value"),
        ([*REQUIRED, "--policy", "best"], "Invalid value for '--policy'"),
        ([*REQUIRED, "--threads", "1"], "Invalid value for '--threads'"),
        ([*REQUIRED, "--endpoint-slice", "s"], "--address: Required value"),
    ],
)
def test_unusable_input_is_one_line(
    served: list[Settings], capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"scheduler: error: {text}")
    assert line.count("\n") == 1
    assert served == []
