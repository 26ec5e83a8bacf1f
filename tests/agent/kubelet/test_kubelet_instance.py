"""Which life of the kubelet is there, and waiting for changes in its directory."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inotify_simple import INotify

from agent.kubelet import kubelet_instance
from agent.kubelet.kubelet_instance import DirectoryWatch, KubeletInstance

LONG = 100.0
"""Longer than any test takes: a wait that ends by itself would be seen."""
SOON = 0.2


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryWatch]:
    """Of a directory that is not there yet, and that is not looked at again now and then."""
    monkeypatch.setattr(kubelet_instance, "CHECK_SECONDS", LONG)
    monkeypatch.setattr(kubelet_instance, "_UNWATCHED_SECONDS", 0.05)
    made = DirectoryWatch(tmp_path / "d")
    yield made
    made.close()
    made.wake()


@pytest.fixture
def directory(tmp_path: Path, watch: DirectoryWatch) -> Path:
    """One that is there, and watched."""
    (tmp_path / "d").mkdir()
    watch.wait()  # returns at once: what there was before is not told of
    return tmp_path / "d"


def took(watch: DirectoryWatch, *meanwhile: Callable[[], object], seconds: float = LONG) -> float:
    """Wait; tell how long that took, with something happening soon after its begin."""
    timers = [threading.Timer(0.1, each) for each in meanwhile]
    began = time.monotonic()
    for each in timers:
        each.start()
    watch.wait(seconds)
    found = time.monotonic() - began
    for each in timers:
        each.join()
    return found


def is_watching(watch: DirectoryWatch, directory: Path) -> bool:
    """Return whether a wait lasts until something changes, and no longer."""
    socket = directory / "kubelet.sock"
    return took(watch, seconds=SOON) >= SOON and 0.09 < took(watch, socket.touch) < LONG


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
    assert 0.09 < took(watch, change_it[change]) < LONG


def test_what_is_written_into_a_file_does_not(watch: DirectoryWatch, directory: Path) -> None:
    checkpoint = directory / "kubelet_internal_checkpoint"
    checkpoint.touch()
    watch.wait()
    assert took(watch, lambda: checkpoint.write_text("{}"), seconds=0.3) >= 0.3


@pytest.mark.parametrize("change", ["a file", "woken", "events that were lost"])
def test_a_change_between_two_waits_ends_the_second_at_once_and_no_other(
    watch: DirectoryWatch, directory: Path, change: str
) -> None:
    """The kernel keeps 16,384 events, and says that there were more."""
    for number in range({"a file": 1, "woken": 0}.get(change, 9_000)):
        path = directory / str(number)
        path.touch()
        path.unlink()
    if change == "woken":
        watch.wake()
        watch.wake()
    assert took(watch) < LONG
    assert is_watching(watch, directory)


def test_a_directory_that_comes_later_or_anew_is_watched(
    watch: DirectoryWatch, tmp_path: Path
) -> None:
    directory = tmp_path / "d"
    for _ in range(2):
        assert took(watch) < LONG  # it is looked for again soon
        directory.mkdir()
        watch.wait()  # which finds it
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

    class NoWatches(INotify):  # type: ignore[misc]  # it has no types
        def add_watch(self, *_: object) -> int:
            raise OSError(28, "No space left on device")

    (tmp_path / "d").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(kubelet_instance, "INotify", NoWatches)
        assert took(watch) < LONG
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
        """Start a kubelet, which makes its socket anew, and give the name of its life."""
        beside = tmp_path / "new"  # the old file is there until then: another inode
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
    assert (
        KubeletInstance(tmp_path).current() == instance.current()
    )  # the next agent names it alike
    assert caplog.messages == ["the kubelet has restarted"] * 2
