import ssl
from pathlib import Path

import pytest
import trustme

from simulator.api.faults import Outage
from simulator.api.server import ApiServer, Settings
from simulator.client import ApiClient, ApiUnreachable
from tests.simulator.api_helpers import PODS, pod


def test_watches_can_be_cut_off(server: ApiServer, client: ApiClient) -> None:
    watch = client.watch("/api/v1/pods", resource_version="1")
    server.drop_watches()
    with pytest.raises(ApiUnreachable, match="watch broke off"):
        list(watch)
    client.list(PODS)


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
