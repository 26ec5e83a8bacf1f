"""The webhook's server in this process, as far as no process is needed."""

from pathlib import Path

from common.serving.tls import Certificate
from contract.names import Names
from webhook.server import Server
from webhook.settings import Files, Settings


def test_no_setting_of_gunicorn_touches_a_read_only_root(certificates: Path) -> None:
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    settings = Settings("::1", 8443, files, Names(), connections=70, drain_delay=5)
    server = Server(settings, Certificate(files))
    made = server.cfg.settings
    assert server.connections == 70
    assert made["bind"].value == ["[::1]:8443"]
    assert made["control_socket_disable"].value is True
    assert made["worker_tmp_dir"].value in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"].value < 30
