"""The webhook's server in this process: its settings, and what it serves to which client."""

import base64
import json
import logging
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import trustme

from common.serving.tls import ServedCertificate
from tests.agent.builders import raising
from tests.agent.fakes import eventually
from tests.common.serving.in_process import served
from webhook.metrics import Metrics
from webhook.server import WebhookServer
from webhook.settings import Files, Settings

Json = dict[str, Any]


def make_server(certificates: Path, client_ca: Path | None = None) -> WebhookServer:
    files = Files(certificates / "tls.crt", certificates / "tls.key", client_ca)
    settings = Settings(host="::1", port=8443, files=files, connections=70, drain_delay=5)
    return WebhookServer(settings, ServedCertificate(files))


def test_no_setting_of_gunicorn_touches_a_read_only_root(certificates: Path) -> None:
    server = make_server(certificates)
    made = server.cfg.settings
    assert server.connections == 70
    assert made["bind"].value == ["[::1]:8443"]
    assert made["control_socket_disable"].value is True
    assert made["worker_tmp_dir"].value in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"].value < 30


def test_reviews_need_the_certificate_of_the_client_ca_and_probes_do_not(
    certificates: Path, tmp_path: Path, review: Json, caplog: pytest.LogCaptureFixture
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.crt")
    webhook = make_server(certificates, tmp_path / "clients.crt")
    caplog.set_level(logging.INFO)
    with served(webhook, certificates) as server:
        assert server.get("/readyz") == (200, "ok\n")
        assert server.post(json.dumps(review), context=server.tls()) == (
            403,
            "client certificate: Required value: issued by --client-ca\n",
        )
        known, unknown = server.tls(), server.tls()
        authority.issue_cert("apiserver").configure_cert(known)
        status, text = server.post(json.dumps(review), context=known)
        assert status == 200
        assert b"admission-order" in base64.b64decode(json.loads(text)["response"]["patch"])
        stranger.issue_cert("apiserver").configure_cert(unknown)
        with pytest.raises(OSError, match=r"closed|reset|EOF"):
            server.post(json.dumps(review), context=unknown)

        def reasons() -> list[str]:
            failed = (each for each in caplog.records if each.message == "handshake failed")
            return [vars(each)["reason"] for each in failed]

        eventually(lambda: reasons() == ["CERTIFICATE_VERIFY_FAILED"], "it is logged")


def test_a_copy_of_the_source_that_was_never_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    not_installed = raising(PackageNotFoundError("gpu-turnstile"))
    monkeypatch.setattr("common.serving.metrics.version", not_installed)
    assert 'version="unknown"' in Metrics().render().decode()
