"""Host names that a browser may use: none that another person could point to this server."""

import pytest

from view.web.hosts import Hosts

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
def test_all_other_hosts_are_refused(header: str) -> None:
    assert not HOSTS.allow(header)


@pytest.mark.parametrize("name", ["", "*", "a b", "http://x", "*.*.x", "x:80", "ä"])
def test_an_invalid_host_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        Hosts([name])
