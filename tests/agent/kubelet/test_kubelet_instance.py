"""Instances of the kubelet, and waiting for changes in its directory."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inotify_simple import INotify

from agent.kubelet.kubelet_instance import DirectoryWatch, KubeletInstance
from tests.agent.builders import raising

LONG = 100.0
"""Longer than any test: a wait that ends without a change would exceed it."""
SOON = 0.2


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[DirectoryWatch]:
    """A watch of a missing directory, which checks for unreported changes too late for a test."""
    made = DirectoryWatch(tmp_path / "d", check=LONG, unwatched=0.05)
    yield made
    made.close()
    made.wake()


@pytest.fixture
def directory(tmp_path: Path, watch: DirectoryWatch) -> Path:
    (tmp_path / "d").mkdir()
    watch.wait()  # returns at once: earlier changes are not reported
    return tmp_path / "d"


def measure(
    watch: DirectoryWatch, meanwhile: Callable[[], object] = lambda: None, seconds: float = LONG
) -> float:
    """Wait; return how many seconds that took, with a change 0.1 s after its begin."""
    timer = threading.Timer(0.1, meanwhile)
    began = time.monotonic()
    timer.start()
    watch.wait(seconds)
    found = time.monotonic() - began
    timer.join()
    return found


def is_watching(watch: DirectoryWatch, directory: Path) -> bool:
    """Return whether a wait lasts until something changes, and no longer."""
    socket = directory / "kubelet.sock"
    return measure(watch, seconds=SOON) >= SOON and 0.09 < measure(watch, socket.touch) < LONG


@pytest.mark.parametrize("change", ["made", "removed", "replaced"])
def test_a_change_ends_the_wait(watch: DirectoryWatch, directory: Path, change: str) -> None:
    socket, beside = directory / "kubelet.sock", directory.parent / "beside"
    beside.touch()
    if change != "made":
        socket.touch()
        watch.wait()
    change_it: dict[str, Callable[[], object]] = {
        "made": socket.touch,
        "removed": socket.unlink,
        "replaced": lambda: beside.rename(socket),
    }
    assert 0.09 < measure(watch, change_it[change]) < LONG


def test_a_write_into_a_file_does_not_end_the_wait(watch: DirectoryWatch, directory: Path) -> None:
    checkpoint = directory / "kubelet_internal_checkpoint"
    checkpoint.touch()
    watch.wait()
    assert measure(watch, lambda: checkpoint.write_text("{}"), seconds=0.3) >= 0.3


@pytest.mark.parametrize("change", ["a file", "woken", "events that were lost"])
def test_a_change_between_two_waits_ends_the_second_at_once_and_no_other(
    watch: DirectoryWatch, directory: Path, change: str
) -> None:
    """The kernel keeps 16,384 events, and reports that there were more."""
    paths = [directory / "a", directory / "b"]
    paths[0].touch()
    for _ in range({"a file": 1, "woken": 0}.get(change, 8_200)):  # two events each
        paths[0].rename(paths[1])
        paths.reverse()
    if change == "woken":
        watch.wake()
        watch.wake()
    assert measure(watch) < LONG
    assert is_watching(watch, directory)


def test_a_directory_that_is_made_later_or_again_is_watched(
    watch: DirectoryWatch, tmp_path: Path
) -> None:
    directory = tmp_path / "d"
    for _ in range(2):
        assert measure(watch) < LONG  # it is checked again soon
        directory.mkdir()
        watch.wait()  # and found
        assert is_watching(watch, directory)
        shutil.rmtree(directory)
        watch.wait()


def test_without_inotify_it_logs_that_and_polls(
    watch: DirectoryWatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All inotify instances or watches of the host are taken."""
    (tmp_path / "d").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(INotify, "add_watch", raising(OSError(28, "No space left on device")))
        assert measure(watch) < LONG
    (record, *_) = caplog.records
    assert record.getMessage() == "cannot watch the plugin directory"
    assert vars(record)["reason"] == "[Errno 28] No space left on device"
    watch.wait()
    assert is_watching(watch, tmp_path / "d")


def test_each_kubelet_is_an_instance_that_lasts_until_another_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    socket, instance = tmp_path / "kubelet.sock", KubeletInstance(tmp_path)

    def start() -> str:
        """Start a kubelet, which makes its socket again, and return the name of its instance."""
        beside = tmp_path / "new"  # the old file exists until then: another inode
        beside.touch()
        beside.replace(socket)
        return instance.current()

    assert instance.current() == ""
    first = start()
    assert "" != first == instance.current()
    assert caplog.messages == []  # the first is no restart
    second = start()
    assert first != second == instance.current()
    socket.unlink()
    assert instance.current() == second
    assert caplog.messages == ["the kubelet has restarted"]
    assert start() not in {first, second}
    next_agents = KubeletInstance(tmp_path)
    assert next_agents.current() == instance.current()
    assert caplog.messages == ["the kubelet has restarted"] * 2
