"""The webhook's server in this process, as far as no process is needed."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from common.serving.tls import ServedCertificate
from webhook.metrics import Metrics
from webhook.server import WebhookServer
from webhook.settings import Files, Settings


def test_no_setting_of_gunicorn_touches_a_read_only_root(certificates: Path) -> None:
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    settings = Settings(host="::1", port=8443, files=files, connections=70, drain_delay=5)
    server = WebhookServer(settings, ServedCertificate(files))
    made = server.cfg.settings
    assert server.connections == 70
    assert made["bind"].value == ["[::1]:8443"]
    assert made["control_socket_disable"].value is True
    assert made["worker_tmp_dir"].value in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"].value < 30


def test_a_copy_of_the_source_that_was_never_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_installed(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("common.serving.metrics.version", not_installed)
    assert 'version="unknown"' in Metrics().render().decode()
