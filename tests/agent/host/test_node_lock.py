"""Of the agents of one node one works, and the next as soon as that one has ended."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.host.node_lock import LOCK, NodeLock
from tests.agent.fakes import eventually

HOLD = """
import sys, threading
from pathlib import Path
from agent.host.node_lock import NodeLock
NodeLock(Path(sys.argv[1])).take(threading.Event())
print("taken", flush=True)
sys.stdin.read()
"""


def _in_background(lock: NodeLock, stop: threading.Event) -> list[bool]:
    taken: list[bool] = []
    threading.Thread(target=lambda: taken.append(lock.take(stop)), daemon=True).start()
    return taken


def test_the_next_agent_waits_until_the_lock_is_released_or_it_must_end(tmp_path: Path) -> None:
    first, second, third = (NodeLock(tmp_path) for _ in range(3))
    assert first.take(threading.Event())
    stop = threading.Event()
    taken, given_up = _in_background(second, threading.Event()), _in_background(third, stop)
    eventually(lambda: second.waiting and third.waiting, "they wait")
    stop.set()
    eventually(lambda: given_up == [False], "it ends")
    assert taken == []
    first.release()
    eventually(lambda: taken == [True], "it works")
    assert not second.waiting


@pytest.mark.slow
def test_a_killed_agent_delays_no_call(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        lock = NodeLock(tmp_path)
        taken = _in_background(lock, threading.Event())
        eventually(lambda: lock.waiting, "it waits")
        holder.send_signal(signal.SIGKILL)
        eventually(lambda: taken == [True], "it works")


def test_a_missing_folder_is_waited_for_with_a_log_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.host.node_lock._PROBLEM_SECONDS", 0.01)
    folder = tmp_path / "later"
    lock = NodeLock(folder)
    taken = _in_background(lock, threading.Event())
    eventually(lambda: lock.problem != "", "it says why")
    path = folder / LOCK
    assert lock.problem == (
        f"cannot lock the node: [Errno 2] No such file or directory: {os.fspath(path)!r}"
    )

    folder.mkdir()

    eventually(lambda: taken == [True], "it works")
    assert lock.problem == ""


def test_a_lock_whose_file_was_removed_excludes_no_process(tmp_path: Path) -> None:
    """An emptied folder may cost exclusion, never the node's agent."""
    first, second = NodeLock(tmp_path), NodeLock(tmp_path)
    first.take(threading.Event())
    (tmp_path / LOCK).unlink()

    assert second.take(threading.Event())
