"""Waiting for changes in a real directory, by the kernel's own notifications."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inotify_simple import INotify

from agent.kubelet import directory_watch
from agent.kubelet.directory_watch import DirectoryWatch
from tests.agent.fakes import eventually

LONG = 20.0
"""Longer than any test takes: a wait that ends by itself would be seen."""


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryWatch]:
    """Of a directory that is not there yet, and that is not looked at again now and then."""
    monkeypatch.setattr(directory_watch, "LOOK_AGAIN_SECONDS", LONG)
    made = DirectoryWatch(tmp_path / "d")
    yield made
    made.close()


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


def test_a_change_between_two_waits_ends_the_second_at_once(
    watch: DirectoryWatch, directory: Path
) -> None:
    (directory / "kubelet.sock").touch()
    assert took(watch) < LONG
    assert took(watch, seconds=0.2) >= 0.2  # each change ends one wait


def test_whoever_wakes_it_ends_the_wait_even_before(watch: DirectoryWatch, directory: Path) -> None:
    assert 0.09 < took(watch, watch.wake) < LONG
    watch.wake()
    watch.wake()
    assert took(watch) < LONG
    assert took(watch, seconds=0.2) >= 0.2


def test_a_directory_that_comes_later_or_anew_is_watched(
    watch: DirectoryWatch, tmp_path: Path
) -> None:
    directory = tmp_path / "d"
    for _ in range(2):
        assert took(watch, seconds=0.2) < 1.5  # it is looked for again soon
        directory.mkdir()
        eventually(lambda: took(watch, seconds=0.2) >= 0.2, "it is watched")
        assert 0.09 < took(watch, (directory / "kubelet.sock").touch) < LONG
        shutil.rmtree(directory)
        watch.wait()


def test_without_inotify_it_says_so_and_looks_again_soon(
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
        patch.setattr(directory_watch, "INotify", NoWatches)
        assert took(watch) < 1.5
        assert took(watch) < 1.5
    (told, *_) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert told.getMessage() == "cannot watch the plugin directory"
    assert told.__dict__["reason"] == "[Errno 28] No space left on device"
    time.sleep(1.5)
    watch.wait()
    assert took(watch, (tmp_path / "d" / "kubelet.sock").touch) < LONG


def test_events_that_were_lost_end_the_wait(
    watch: DirectoryWatch, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps 16,384 of them, and says that there were more."""
    for number in range(9_000):
        path = directory / str(number)
        path.touch()
        path.unlink()
    assert took(watch) < LONG
    assert took(watch, seconds=0.2) >= 0.2
    assert 0.09 < took(watch, (directory / "kubelet.sock").touch) < LONG


def test_one_that_is_closed_may_be_woken(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    watch.wait()
    watch.close()
    watch.wake()
