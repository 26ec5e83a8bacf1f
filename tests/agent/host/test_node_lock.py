"""One agent at a time works on a node, within the limits of its process."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.host import process
from agent.host.node_lock import LOCK, NodeLock
from agent.host.process import raise_limit
from tests.agent.builders import raising
from tests.agent.threads import CountedStop

HOLD = """
import sys, threading
from pathlib import Path
from agent.host.node_lock import NodeLock
NodeLock(Path(sys.argv[1])).take(threading.Event())
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_next_agent_waits_until_the_lock_is_released(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path), NodeLock(tmp_path)
    waiting: list[bool] = []
    assert first.take(threading.Event())
    assert second.take(CountedStop(3, lambda: waiting.append(second.waiting), first.release))
    assert (waiting, second.waiting) == ([True], False)


def test_an_agent_that_must_end_stops_waiting(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path), NodeLock(tmp_path)
    assert first.take(threading.Event())
    assert not second.take(CountedStop(1))


@pytest.mark.slow
def test_a_killed_agent_delays_no_call(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"

        def kill() -> None:
            holder.send_signal(signal.SIGKILL)
            holder.wait()

        assert NodeLock(tmp_path).take(CountedStop(2, kill))


def test_a_missing_folder_is_waited_for_with_a_log_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    lock = NodeLock(folder)
    problems: list[str] = []
    assert lock.take(CountedStop(3, lambda: problems.append(lock.problem), folder.mkdir))
    assert problems == [
        f"cannot lock the node: [Errno 2] No such file or directory: {os.fspath(folder / LOCK)!r}"
    ]
    assert lock.problem == ""
    assert caplog.messages == ["cannot lock the node"]


def test_a_lock_whose_file_was_removed_excludes_no_process(tmp_path: Path) -> None:
    """An emptied folder may cost exclusion, never the node's agent."""
    first, second = NodeLock(tmp_path), NodeLock(tmp_path)
    first.take(threading.Event())
    (tmp_path / LOCK).unlink()
    assert second.take(threading.Event())


# --- memory settings, and the limit of open files -------------------------------------


def test_all_threads_share_two_arenas_where_the_library_knows_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: options.append(option))
    for each in (library, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, each=each: each)
        process.limit_arenas()
    assert options == [(-8, 2)]


def test_the_soft_limit_becomes_the_hard_one_unless_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 512)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert raise_limit() == 512
    assert limits == {resource.RLIMIT_NOFILE: (512, 512)}

    limits[resource.RLIMIT_NOFILE] = 64, -1
    monkeypatch.setattr(resource, "setrlimit", raising(ValueError("not allowed")))
    assert raise_limit() == 64
