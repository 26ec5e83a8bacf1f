"""The registrar, against a fake kubelet in a real directory with real sockets."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.kubelet import Endpoint, Registrar
from agent.kubeletapi import deviceplugin_pb2 as pb
from agent.server import DevicePluginService
from agent.tickets import Resource
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import NAMES, FakeCalls, FakeKubelet, eventually, make_book, plugin

BOTH = [NAMES.core, NAMES.memory]


@pytest.fixture
def kubelet(folder: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(folder) as running:
        yield running


class Running:
    """A registrar in a thread, and how often it said that it has registered."""

    def __init__(self, directory: Path) -> None:
        self.calls = FakeCalls()
        self.times = 0
        self.stop = threading.Event()
        self.registrar = Registrar(
            plugin_dir=directory,
            endpoints=(
                Endpoint(NAMES.core, "vcore.sock", lambda: self._service(CORE)),
                Endpoint(NAMES.memory, "vmemory.sock", lambda: self._service(MEMORY)),
            ),
            on_registered=self._registered,
        )
        self.thread = threading.Thread(target=self.registrar.run, args=(self.stop,), daemon=True)

    def _service(self, resource: Resource) -> DevicePluginService:
        return DevicePluginService(resource=resource, book=make_book(1), calls=self.calls)

    def _registered(self) -> None:
        self.times += 1

    def wait(self, times: int = 1) -> None:
        eventually(
            lambda: self.registrar.registered and self.times >= times, f"{times} registrations"
        )


@contextmanager
def registering(directory: Path) -> Iterator[Running]:
    running = Running(directory)
    running.thread.start()
    try:
        yield running
    finally:
        began = time.monotonic()
        running.stop.set()
        running.thread.join(20)
        assert not running.thread.is_alive()
        assert time.monotonic() - began < 4


def serves(directory: Path) -> bool:
    """Tell whether both sockets answer."""
    for name in ("vcore.sock", "vmemory.sock"):
        with plugin(directory / name) as stub:
            stub.GetDevicePluginOptions(pb.Empty(), timeout=10)
    return True


def test_both_resources_are_registered_and_served(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
        assert serves(kubelet.plugin_dir)
    assert kubelet.resources == BOTH
    first = kubelet.registered[0]
    assert first.version == "v1beta1"
    assert first.endpoint == "vcore.sock"
    assert first.options.pre_start_required
    assert first.options.get_preferred_allocation_available


def test_sockets_are_served_before_they_are_registered(kubelet: FakeKubelet) -> None:
    """The kubelet dials back from within Register."""
    kubelet.start()
    served: list[bool] = []
    kubelet.on_register = lambda: served.append(
        (kubelet.plugin_dir / kubelet.registered[-1].endpoint).exists()
    )
    with registering(kubelet.plugin_dir) as running:
        running.wait()
    assert served == [True, True]


def test_after_its_end_nothing_is_served_any_more(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
    assert not (kubelet.plugin_dir / "vcore.sock").exists()
    assert not (kubelet.plugin_dir / "vmemory.sock").exists()


def test_it_may_start_before_the_kubelet(kubelet: FakeKubelet) -> None:
    with registering(kubelet.plugin_dir) as running:
        assert not running.registrar.registered
        kubelet.start()
        running.wait()
    assert kubelet.resources == BOTH


def test_it_may_start_before_the_plugin_directory(folder: Path) -> None:
    with registering(folder / "plugins") as running, FakeKubelet(folder) as kubelet:
        kubelet.start()
        running.wait()
        assert serves(kubelet.plugin_dir)


@pytest.mark.parametrize("delete_plugins", [True, False])
def test_a_kubelet_that_restarts_is_registered_with_again(
    kubelet: FakeKubelet, delete_plugins: bool
) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        for times in (2, 3):
            kubelet.restart(delete_plugins=delete_plugins)
            running.wait(times)
        assert serves(kubelet.plugin_dir)
    assert kubelet.resources == BOTH * 3


def test_while_the_kubelet_is_away_it_is_not_registered(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
        kubelet.stop()
        kubelet.socket.unlink(missing_ok=True)
        eventually(lambda: not running.registrar.registered, "the loss is noticed")
        kubelet.start()
        running.wait(2)


@pytest.mark.parametrize("name", ["vcore.sock", "vmemory.sock"])
def test_a_socket_of_ours_that_is_deleted_is_made_again_and_registered(
    kubelet: FakeKubelet, name: str
) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        (kubelet.plugin_dir / name).unlink()
        running.wait(2)
        assert serves(kubelet.plugin_dir)
    assert kubelet.resources == BOTH * 2


def test_a_plugin_directory_made_anew_is_found(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        kubelet.stop()
        shutil.rmtree(kubelet.plugin_dir)
        kubelet.plugin_dir.mkdir()
        kubelet.start()
        running.wait(2)
        assert serves(kubelet.plugin_dir)


def test_a_plugin_directory_that_comes_back_later_is_found(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        kubelet.stop()
        shutil.rmtree(kubelet.plugin_dir)
        eventually(lambda: not running.registrar.registered, "the loss is noticed")
        kubelet.plugin_dir.mkdir()
        kubelet.start()
        running.wait(2)


def test_a_registration_that_is_refused_is_tried_again(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.start()
    kubelet.refuse_next = 2
    with registering(kubelet.plugin_dir) as running:
        running.wait()
    assert kubelet.resources == BOTH
    assert [
        each.__dict__["reason"] for each in caplog.records if each.message == "registration failed"
    ] == ["UNKNOWN: the kubelet does not like this"] * 2


def test_a_socket_of_a_kubelet_that_died_is_tried_until_the_next_one(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, or a reboot, the file is there and nobody listens."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(kubelet.socket))
    left.close()
    with registering(kubelet.plugin_dir) as running:
        eventually(lambda: "registration failed" in caplog.text, "it tries")
        assert not running.registrar.registered
        kubelet.start()
        running.wait()


def test_sockets_that_a_dead_agent_left_are_taken_over(kubelet: FakeKubelet) -> None:
    for name in ("vcore.sock", "vmemory.sock"):
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(kubelet.plugin_dir / name))
        left.close()
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
        assert serves(kubelet.plugin_dir)


def test_a_socket_that_cannot_be_made_is_tried_again(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = kubelet.plugin_dir / "vcore.sock"
    in_the_way.mkdir()
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        eventually(lambda: "registration failed" in caplog.text, "it tries")
        in_the_way.rmdir()
        running.wait()


def test_other_files_in_the_directory_change_nothing(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        (kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text("{}")
        (kubelet.plugin_dir / "other.sock").touch()
        (kubelet.plugin_dir / "vcore.sock").unlink()  # what makes it look
        running.wait(2)
    assert kubelet.resources == BOTH * 2


def test_a_directory_that_cannot_be_watched_is_looked_at_again(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All inotify watches of the host are taken."""

    def no_watches(*_: object, **__: object) -> Iterator[None]:
        yield from ()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.kubelet.watch", no_watches)
    with registering(kubelet.plugin_dir) as running:
        eventually(lambda: "cannot watch the plugin directory" in caplog.text, "it says so")
        kubelet.start()
        running.wait()


def test_it_stops_promptly_while_it_cannot_register(kubelet: FakeKubelet) -> None:
    kubelet.start()
    kubelet.refuse_next = 1_000_000
    with registering(kubelet.plugin_dir):
        eventually(lambda: kubelet.refuse_next < 999_999, "it tries")
