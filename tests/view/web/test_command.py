"""``python -m view serve``: every flag reaches the server, and one line for what cannot be used."""

from pathlib import Path

import pytest

from placement.scoring import Policy
from view.__main__ import main
from view.web import server
from view.web.links import Dashboard
from view.web.settings import Settings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    found: list[Settings] = []
    monkeypatch.setattr(server, "serve", found.append)
    return found


def test_every_flag_reaches_the_server(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_TURNSTILE_VIEW_ALLOWED_HOSTS", "a.example *.b.example")
    flags = [
        *("--port", "9000", "--host", "::1", "--kubeconfig", "kc", "--domain", "example.org"),
        *("--policy", "spread", "--streams", "4", "--agent-namespace", "ours"),
        *("--dashboard", "https://g.example/{pod}", "--pool-label", "example.org/pool"),
        *("--prometheus", "https://ana:secret@p.example"),
    ]
    assert main(["serve", *flags]) == 0
    (settings,) = served
    assert settings.hosts.allow("x.b.example")
    assert settings.prometheus is not None
    assert "secret" not in repr(settings)
    assert settings == Settings(
        9000,
        "::1",
        names=settings.names,
        kubeconfig=Path("kc"),
        policy=Policy.SPREAD,
        hosts=settings.hosts,
        dashboard=Dashboard("https://g.example/{pod}"),
        prometheus=settings.prometheus,
        pool_labels=("example.org/pool",),
        agents="ours",
        streams=4,
    )
    assert (settings.names.domain, settings.host, settings.port) == ("example.org", "::1", 9000)


def test_the_default_address_is_that_of_the_loopback_interface(served: list[Settings]) -> None:
    assert main(["serve"]) == 0
    assert (served[0].host, served[0].port) == ("127.0.0.1", 8480)
    assert served[0].prometheus is None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--domain", "X"], "domain: Invalid value"),
        (["--allowed-host", "a/b"], "--allowed-host: 'a/b' is not a host name"),
        (["--dashboard", "g.example"], "--dashboard: 'g.example' must begin with http://"),
        (["--prometheus", "a:b@c"], '--prometheus: Invalid value: "***@c": must be an http://'),
        (["--streams", "0"], "Invalid value for '--streams'"),
    ],
)
def test_unusable_input_is_one_line(
    served: list[Settings], flags: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *flags]) == 2
    assert text in capsys.readouterr().err
    assert served == []
