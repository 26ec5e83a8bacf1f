"""Credentials: the token of a pod's service account, over TLS; kubeconfigs are in test_api."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from kubernetes.config import incluster_config

from common.apiserver.errors import CredentialsError
from common.apiserver.rest import Rest
from common.errors import Unavailable


class Server:
    """An API server with TLS that keeps the header with each request's token."""

    def __init__(self, authority: trustme.CA) -> None:
        self.tokens: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.tokens.append(self.headers.get("authorization"))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that does not trust us hangs up."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Server]:
    running = Server(authority)
    yield running
    running.close()


@pytest.fixture
def account(
    tmp_path: Path, authority: trustme.CA, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A service account as a pod finds it."""
    (tmp_path / "token").write_text("first")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return tmp_path


def test_in_a_pod_the_service_accounts_token_is_sent_over_tls(
    account: Path, server: Server
) -> None:
    assert Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5).status == 200
    assert server.tokens == ["bearer first"]


def test_a_token_is_read_again_when_it_is_due(account: Path, server: Server) -> None:
    """The kubelet writes a new one long before the old one expires."""
    rest = Rest(None, user_agent="test")
    (account / "token").write_text("second")
    rest.request("GET", "/api/v1/pods", timeout=5).release_conn()
    _make_due(rest)
    rest.request("GET", "/api/v1/pods", timeout=5).release_conn()
    assert server.tokens == ["bearer first", "bearer second"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("")])
def test_a_token_that_cannot_be_read_again_is_an_outage_that_passes(
    account: Path, server: Server, spoil: object
) -> None:
    rest = Rest(None, user_agent="test")
    _make_due(rest)
    assert callable(spoil)
    spoil(account / "token")
    with pytest.raises(Unavailable, match=r"^API server: "):
        rest.request("GET", "/api/v1/pods", timeout=5)
    (account / "token").write_text("third")
    assert rest.request("GET", "/api/v1/pods", timeout=5).status == 200
    assert server.tokens == ["bearer third"]


def test_a_server_that_is_not_trusted_is_an_outage(account: Path, server: Server) -> None:
    trustme.CA().cert_pem.write_to_path(account / "ca.crt")
    with pytest.raises(Unavailable, match=r"^API server: .*(?s:SSL|CERTIFICATE)"):
        Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5)
    assert server.tokens == []


def test_a_service_account_without_a_token_is_named(account: Path) -> None:
    (account / "token").unlink()
    with pytest.raises(
        CredentialsError, match=r"^kubeconfig: cannot use the pod's service account: Service token"
    ):
        Rest(None, user_agent="test")


def _make_due(rest: Rest) -> None:
    """Let the period after which the client reads the token again be over."""
    hook: Any = rest._configuration.refresh_api_key_hook
    loader = next(
        cell.cell_contents
        for cell in hook.__closure__
        if isinstance(cell.cell_contents, incluster_config.InClusterConfigLoader)
    )
    loader.token_expires_at = loader.token_expires_at.min
