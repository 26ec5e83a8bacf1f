import ssl
from pathlib import Path

import pytest
import trustme

from simulator.api.errors import StatusError
from simulator.api.faults import Outage
from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient, ApiError, ApiUnreachable
from tests.simulator.api_helpers import PODS, node, pod


def test_a_refused_outage_resets_connections_and_keeps_port_and_objects(
    server: ApiServer, client: ApiClient
) -> None:
    client.create(PODS, pod())
    watch = client.watch("/api/v1/pods", resource_version="1")
    url = server.url
    server.set_outage(Outage.REFUSED)
    with pytest.raises(ApiUnreachable):
        list(watch)
    with pytest.raises(ApiUnreachable):
        client.list(PODS)
    server.set_outage(Outage.NONE)
    assert server.url == url
    assert len(client.list(PODS)["items"]) == 1


def test_an_unavailable_server_answers_503(server: ApiServer, client: ApiClient) -> None:
    server.set_outage(Outage.UNAVAILABLE)
    with pytest.raises(ApiError) as raised:
        client.list(PODS)
    assert (raised.value.status, raised.value.reason) == (503, "ServiceUnavailable")
    server.set_outage(Outage.NONE)
    client.list(PODS)


def test_watches_can_be_cut_off(server: ApiServer, client: ApiClient) -> None:
    watch = client.watch("/api/v1/pods", resource_version="1")
    server.drop_watches()
    with pytest.raises(ApiUnreachable, match="watch broke off"):
        list(watch)
    client.list(PODS)


def test_apply_creates_and_replaces(server: ApiServer, client: ApiClient) -> None:
    server.apply(node(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    server.apply(node() | {"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    assert client.get("/api/v1/nodes/n1")["metadata"]["labels"] == {"zone": "a"}
    with pytest.raises(StatusError, match='no matches for kind "Gadget" in version "v1"'):
        server.apply({"apiVersion": "v1", "kind": "Gadget", "metadata": {"name": "g"}})


def test_with_a_certificate_it_serves_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ApiServer(Settings(tls=context)) as server:
        assert server.url.startswith("https://")
        with ApiClient(server.url, ca_file=str(tmp_path / "ca.crt")) as client:
            client.create(PODS, pod())
            server.set_outage(Outage.REFUSED)
            server.set_outage(Outage.NONE)
            assert len(client.list(PODS)["items"]) == 1
