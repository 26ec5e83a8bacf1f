"""Credentials: the token of a pod's service account, over TLS; kubeconfigs are in test_api."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from kubernetes.config import incluster_config

from common.apiserver.errors import CredentialsError
from common.apiserver.rest import Rest
from common.errors import Unavailable
from simulator.api.server import ApiServer, Settings


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
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return tmp_path


def test_in_a_pod_the_service_accounts_token_is_sent_over_tls(
    account: Path, server: ApiServer
) -> None:
    assert Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5).status == 200
    assert tokens(server) == ["bearer first"]


def test_a_token_is_read_again_when_it_is_due(account: Path, server: ApiServer) -> None:
    """The kubelet writes a new one long before the old one expires."""
    rest = Rest(None, user_agent="test")
    (account / "token").write_text("second")
    rest.request("GET", "/api/v1/pods", timeout=5).release_conn()
    _make_due(rest)
    rest.request("GET", "/api/v1/pods", timeout=5).release_conn()
    assert tokens(server) == ["bearer first", "bearer second"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("")])
def test_a_token_that_cannot_be_read_again_is_an_outage_that_passes(
    account: Path, server: ApiServer, spoil: object
) -> None:
    rest = Rest(None, user_agent="test")
    _make_due(rest)
    assert callable(spoil)
    spoil(account / "token")
    with pytest.raises(Unavailable, match=r"^API server: "):
        rest.request("GET", "/api/v1/pods", timeout=5)
    (account / "token").write_text("third")
    assert rest.request("GET", "/api/v1/pods", timeout=5).status == 200
    assert tokens(server) == ["bearer third"]


def test_a_server_that_is_not_trusted_is_an_outage(account: Path, server: ApiServer) -> None:
    trustme.CA().cert_pem.write_to_path(account / "ca.crt")
    with pytest.raises(Unavailable, match=r"^API server: .*(?s:SSL|CERTIFICATE)"):
        Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=5)
    assert tokens(server) == []


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
