"""gunicorn's master and worker in this process, as far as no process is needed."""

from pathlib import Path

import pytest

from common.serving.tls import Certificate
from contract.names import Names
from webhook.server import Master
from webhook.settings import Files, Settings


@pytest.fixture
def settings(certificates: Path) -> Settings:
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    return Settings("::1", 8443, files, Names(), workers=3, connections=70, drain_delay=5)


def test_no_setting_of_gunicorn_touches_a_read_only_root(
    settings: Settings, tmp_path: Path
) -> None:
    master = Master(settings, Certificate(settings.files), tmp_path)
    assert master.serving.connections == 70
    made = master.cfg.settings
    assert made["bind"].value == ["[::1]:8443"]
    assert made["workers"].value == 3
    assert made["control_socket_disable"].value is True
    assert made["worker_tmp_dir"].value in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"].value < 30
