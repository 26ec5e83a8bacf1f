"""gunicorn's master and worker in this process, as far as no process is needed."""

from pathlib import Path

import pytest
from prometheus_client import values

from contract.names import Names
from webhook.server.master import Master, gunicorn_settings
from webhook.server.tls import Certificate
from webhook.server.worker import open_files
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


def test_no_setting_of_gunicorn_touches_a_read_only_root(settings: Settings) -> None:
    made = gunicorn_settings(settings)
    assert made["bind"] == "[::1]:8443"
    assert made["workers"] == 3
    assert made["control_socket_disable"] is True
    assert made["worker_tmp_dir"] in {"/dev/shm", None}
    assert 5 + 16 < made["graceful_timeout"] < 30


@pytest.mark.parametrize(
    ("limits", "wanted", "raised", "held"),
    [
        ((1024, 4096), 500, None, 500),
        ((1024, 4096), 1000, (1064, 4096), 1000),
        ((1024, 4096), 5000, (4096, 4096), 4032),
        ((1024, -1), 5000, (5064, -1), 5000),
        ((32, 32), 5000, (32, 32), 1),
    ],
)
def test_no_more_connections_are_held_than_there_may_be_open_files(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    wanted: int,
    raised: tuple[int, int] | None,
    held: int,
) -> None:
    state = [limits]
    monkeypatch.setattr("resource.getrlimit", lambda _: state[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, new: state.append(new))
    assert open_files(wanted) == held
    assert state[1:] == ([] if raised is None else [raised])
