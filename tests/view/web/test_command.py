"""``python -m view serve``: its flags, and the host names that a browser may use."""

from pathlib import Path

import pytest

from contract.names import Names
from placement.scoring import Policy
from view.__main__ import main
from view.web import server
from view.web.hosts import Hosts
from view.web.links import Dashboard
from view.web.settings import Settings

HOSTS = Hosts(["gpus.example.org", "*.eks.example.com"])


@pytest.mark.parametrize(
    "header",
    [
        *("localhost", "localhost:8480", "LocalHost:1", "page.localhost:9", "127.0.0.1:8480"),
        *("10.1.2.3", "[::1]:8480", "[fd00::7]", "gpu-turnstile-view", "gpu-turnstile-view:80"),
        "gpu-turnstile-view.gpu-turnstile.svc:80",
        *("gpu-turnstile-view.gpu-turnstile.svc.cluster.local", "gpus.example.org:443"),
        *("GPUS.example.org.", "a.eks.example.com"),
    ],
)
def test_names_of_the_page_are_allowed(header: str) -> None:
    assert HOSTS.allow(header)


@pytest.mark.parametrize(
    "header",
    [
        *("", ":80", "evil.example", "evil.example:8480", "localhost.evil.example", "[evil]:80"),
        *("gpu-turnstile-view.evil.example", "gpu-turnstile-view.ns.svc.evil", "eks.example.com"),
        "gpu-turnstile-view.com",  # may not be a namespace
        *("xlocalhost", "127.0.0.1.evil.example", "::1", "evil.example:127.0.0.1", "[::1", "1"),
        *("gpus.example.org@evil.example", "a b", "localhost:99999999"),
    ],
)
def test_hosts_that_another_person_could_point_to_this_server_are_refused(header: str) -> None:
    assert not HOSTS.allow(header)


@pytest.mark.parametrize("name", ["", "*", "a b", "http://x", "*.*.x", "x:80", "ä"])
def test_an_invalid_host_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        Hosts([name])


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
        names=Names("example.org"),
        kubeconfig=Path("kc"),
        policy=Policy.SPREAD,
        hosts=settings.hosts,
        dashboard=Dashboard("https://g.example/{pod}"),
        prometheus=settings.prometheus,
        pool_labels=("example.org/pool",),
        agents="ours",
        streams=4,
    )


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
