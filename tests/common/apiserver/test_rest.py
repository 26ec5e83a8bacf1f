"""Credentials of a pod's service account, over TLS; retries; how errors are worded."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from common.apiserver import access
from common.apiserver.access import ServerAccess, service_account
from common.apiserver.errors import CredentialsError
from common.apiserver.kubeconfig import load_context
from common.apiserver.rest import Rest, SharedTimeout, Timeout
from common.errors import Unavailable
from simulator.api.faults import SILENCE, Fault, Outage
from simulator.api.server import ApiServer, Settings, kubeconfig_for


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[ApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ApiServer(Settings(tls=context)) as running:
        yield running


def tokens(server: ApiServer) -> list[str | None]:
    """What each request had in its header."""
    return [each.headers.get("authorization") for each in server.requests]


@pytest.fixture
def account(
    tmp_path: Path, authority: trustme.CA, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A service account as a pod finds it."""
    (tmp_path / "token").write_text("first")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path


def test_in_a_pod_the_service_accounts_token_is_sent_over_tls(
    account: Path, server: ApiServer
) -> None:
    assert Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5).status == 200
    assert tokens(server) == ["Bearer first"]


def test_a_token_is_read_again_when_it_is_due(account: Path, server: ApiServer) -> None:
    """The kubelet writes a new one long before the old one expires."""
    now = [0.0]
    rest = Rest(service_account(clock=lambda: now[0]), user_agent="test")
    (account / "token").write_text("second\n")
    for now[0] in (0, 59, 60):
        rest.request("GET", "/api/v1/pods", timeout=5).release_conn()
    assert tokens(server) == ["Bearer first", "Bearer first", "Bearer second"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("\n")])
def test_a_token_that_cannot_be_read_again_is_an_outage_that_passes(
    account: Path, server: ApiServer, spoil: Callable[[Path], object]
) -> None:
    now = [0.0]
    rest = Rest(service_account(clock=lambda: now[0]), user_agent="test")
    now[0] = 60
    spoil(account / "token")
    with pytest.raises(Unavailable, match=r"^API server: getting credentials: the token file "):
        rest.request("GET", "/api/v1/pods", timeout=5)
    (account / "token").write_text("third")
    assert rest.request("GET", "/api/v1/pods", timeout=5).status == 200
    assert tokens(server) == ["Bearer third"]


def test_a_server_that_is_not_trusted_is_an_outage(account: Path, server: ApiServer) -> None:
    trustme.CA().cert_pem.write_to_path(account / "ca.crt")
    with pytest.raises(Unavailable, match=r"^API server: the certificate of \S+ is not trusted: "):
        Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5)
    assert tokens(server) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("token", "the token file .* cannot be read: No such file"), ("ca.crt", "No such file")],
)
def test_a_service_account_without_its_files_is_named(account: Path, name: str, text: str) -> None:
    (account / name).unlink()
    with pytest.raises(
        CredentialsError, match=rf"^kubeconfig: cannot use the pod's service account: .*{text}"
    ):
        Rest(None, user_agent="test")


# --- retries ----------------------------------------------------------------------------


class Waits:
    """Stands for the waits before a retry; calls *then* after some of them."""

    def __init__(self, then: Callable[[], None] = lambda: None, after: int = 0) -> None:
        self.seconds: list[float] = []
        self._then = then
        self._after = after

    def __call__(self, closed: threading.Event, seconds: float) -> bool:
        self.seconds.append(seconds)
        if len(self.seconds) == self._after:
            self._then()
        return closed.is_set()


@pytest.fixture
def plain() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


def reach(server: ApiServer, folder: Path) -> ServerAccess:
    (folder / "kubeconfig").write_text(kubeconfig_for(server.url))
    return load_context([folder / "kubeconfig"])[0]


_AT_ONCE: Timeout = (5.0, 5.0)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_request_is_sent_again_after_the_time_that_the_server_names(
    plain: ApiServer, tmp_path: Path, status: int, method: str
) -> None:
    plain.fail(Fault(status, retry_after="7"))
    waits = Waits(plain.restore, after=3)
    rest = Rest(reach(plain, tmp_path), user_agent="test", wait=waits)
    path, body = "/api/v1/namespaces/default/configmaps/a", {"metadata": {"name": "a"}}
    assert rest.request(method, path, timeout=_AT_ONCE, body=body).status < 500
    assert waits.seconds == [7, 7, 7]
    assert [each.method for each in plain.requests] == [method] * 4


def test_after_ten_retries_it_is_an_error(plain: ApiServer, tmp_path: Path) -> None:
    plain.fail(Fault(429, retry_after="1"))
    waits = Waits()
    rest = Rest(reach(plain, tmp_path), user_agent="test", wait=waits)
    assert rest.request("GET", "/api/v1/pods", timeout=_AT_ONCE).status == 429
    assert (len(waits.seconds), len(plain.requests)) == (10, 11)


@pytest.mark.parametrize(
    ("status", "header"),
    [(429, ""), (503, "Fri, 27 Nov 2026 00:00:00 GMT"), (503, "-1"), (404, "1"), (409, "1")],
)
def test_nothing_else_is_sent_again(
    plain: ApiServer, tmp_path: Path, status: int, header: str
) -> None:
    plain.fail(Fault(status, retry_after=header))
    waits = Waits()
    rest = Rest(reach(plain, tmp_path), user_agent="test", wait=waits)
    assert rest.request("GET", "/api/v1/pods", timeout=_AT_ONCE).status == status
    assert waits.seconds == []


def test_a_timeout_for_all_of_a_request_bounds_its_retries(
    plain: ApiServer, tmp_path: Path
) -> None:
    waits = Waits()
    rest = Rest(reach(plain, tmp_path), user_agent="test", wait=waits)
    for seconds in ("60", "30"):
        plain.fail(Fault(429, retry_after=seconds))
        assert rest.request("GET", "/api/v1/pods", timeout=30.0).status == 429
    assert waits.seconds == []
    plain.fail(Fault(429, retry_after="20"))
    assert rest.request("GET", "/api/v1/pods", timeout=30.0).status == 429
    assert len(waits.seconds) == 10  # they cost no time here


def test_a_retry_has_the_rest_of_the_timeout_as_the_servers_own(
    plain: ApiServer, tmp_path: Path
) -> None:
    plain.fail(Fault(429, retry_after="1"))
    rest = Rest(reach(plain, tmp_path), user_agent="test", wait=Waits(plain.restore, after=1))
    rest.request("GET", "/api/v1/pods", timeout=SharedTimeout(30))
    first, second = (float(each.query.split("=")[1].strip("s")) for each in plain.requests)
    assert 30 >= first > second > 0


def test_a_client_that_is_closed_does_not_wait(plain: ApiServer, tmp_path: Path) -> None:
    plain.fail(Fault(429, retry_after="3600"))
    rest = Rest(reach(plain, tmp_path), user_agent="test")
    threading.Timer(0.1, rest.close).start()
    assert rest.request("GET", "/api/v1/pods", timeout=_AT_ONCE).status == 429


# --- words ------------------------------------------------------------------------------


class NoCredentials:
    def current(self) -> access.Credentials:
        return access.Credentials()

    def reject(self, credentials: access.Credentials) -> None:
        pass


def test_https_to_a_port_without_tls_is_said_in_words(plain: ApiServer) -> None:
    url = plain.url.replace("http:", "https:")
    rest = Rest(ServerAccess(url, NoCredentials()), user_agent="test")
    text = "TLS: (wrong version number|record layer failure)"
    with pytest.raises(Unavailable, match=f"^API server: {text}$"):
        rest.request("GET", "/api/v1/pods", timeout=5)


def test_a_name_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    rest = Rest(ServerAccess("https://api.example:6443", NoCredentials()), user_agent="test")
    with pytest.raises(Unavailable, match=r"^API server: no such host: api\.example$"):
        rest.request("GET", "/api/v1/pods", timeout=5)


def test_a_server_that_refuses_or_keeps_silent_is_named(plain: ApiServer, tmp_path: Path) -> None:
    rest = Rest(reach(plain, tmp_path), user_agent="test")
    where = plain.url.rpartition("/")[2]
    plain.fail(SILENCE)
    with pytest.raises(Unavailable, match=f"^API server: no response from {where} in time$"):
        rest.request("GET", "/api/v1/pods", timeout=0.2)
    plain.set_outage(Outage.REFUSED)
    with pytest.raises(Unavailable, match=f"^API server: connection refused by {where}$"):
        rest.request("GET", "/api/v1/pods", timeout=5)
