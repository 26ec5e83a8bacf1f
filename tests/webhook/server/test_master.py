"""gunicorn's master and worker in this process, as far as no process is needed."""

from pathlib import Path

import pytest
from prometheus_client import values

from common.serving.tls import Certificate
from contract.names import Names
from webhook.server.master import Master
from webhook.settings import Files, Settings


class Process:
    """A worker as the master knows it, for its place alone."""


@pytest.fixture
def settings(certificates: Path) -> Settings:
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    return Settings("::1", 8443, files, Names(), workers=3, drain_delay=5)


def _share(master: Master, worker: Process) -> None:
    """Do what gunicorn does before and after it forks."""
    master.cfg.pre_fork(None, worker)
    master.cfg.post_fork(None, worker)


def test_a_new_worker_counts_in_the_files_of_the_dead_one(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "elsewhere")  # put back at the end
    monkeypatch.setattr("webhook.metrics.values.ValueClass", values.ValueClass)

    def master() -> Master:
        return Master(settings, Certificate(settings.files), tmp_path)

    def files() -> set[str]:
        return {each.name for each in tmp_path.iterdir() if each.name.startswith("counter")}

    first = master()
    one, two, three = Process(), Process(), Process()
    first.cfg.pre_fork(None, two)
    _share(first, one)
    first.metrics.connected(3)
    assert first.metrics is first.metrics
    assert b"connections 3.0" in first.metrics.render()
    assert files() == {"counter_1.db"}
    first.cfg.child_exit(None, two)
    first.cfg.child_exit(None, two)  # the dead die once
    _share(first, three)
    other = master()
    other.metrics.connected(1)
    assert files() == {"counter_0.db", "counter_1.db"}


def test_no_setting_of_gunicorn_touches_a_read_only_root(
    settings: Settings, tmp_path: Path
) -> None:
    made = Master(settings, Certificate(settings.files), tmp_path).cfg.settings
    assert made["bind"].value == ["[::1]:8443"]
    assert made["workers"].value == 3
    assert made["control_socket_disable"].value is True
    assert made["worker_tmp_dir"].value in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"].value < 30
