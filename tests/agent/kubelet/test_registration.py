"""The registrar, against a fake kubelet in a real directory with real sockets."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.kubelet.endpoints import Endpoint
from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService
from common.kubelet_api import deviceplugin_pb2 as pb
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import (
    DEADLINE_S,
    NAMES,
    FakeCalls,
    FakeKubelet,
    eventually,
    make_table,
    plugin,
)

BOTH = [NAMES.core, NAMES.memory]


class Running:
    """A registrar in a thread, and the gaps that it told of, one a registration."""

    def __init__(self, directory: Path) -> None:
        self.calls = FakeCalls()
        self.gaps: list[float] = []
        self.registrar = Registrar(
            plugin_dir=directory,
            endpoints=(
                Endpoint(NAMES.core, "vcore", lambda: self._service(CORE)),
                Endpoint(NAMES.memory, "vmemory", lambda: self._service(MEMORY)),
            ),
            on_gap=self.gaps.append,
        )
        self.thread = threading.Thread(target=self.registrar.run, daemon=True)

    def _service(self, resource: Resource) -> DevicePluginService:
        return DevicePluginService(resource=resource, table=make_table(1), calls=self.calls)

    def wait(self, times: int = 1) -> None:
        eventually(
            lambda: self.registrar.registered and len(self.gaps) >= times, f"{times} registrations"
        )


@contextmanager
def registering(directory: Path, running: Running | None = None) -> Iterator[Running]:
    running = running or Running(directory)
    running.thread.start()
    try:
        yield running
    finally:
        began = time.monotonic()
        running.registrar.stop()
        running.thread.join(20)
        assert not running.thread.is_alive()
        assert time.monotonic() - began < 1.5


STEMS = ["vcore", "vmemory"]


def serves(kubelet: FakeKubelet) -> bool:
    """Tell whether both sockets that were registered last answer."""
    for stem in STEMS:
        with plugin(kubelet.path_of(stem)) as stub:
            stub.GetDevicePluginOptions(pb.Empty(), timeout=10)
    return True


@pytest.mark.parametrize("stem", STEMS)
def test_a_socket_of_ours_that_is_deleted_is_made_again_and_registered(
    kubelet: FakeKubelet, stem: str
) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        (kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text("{}")
        (kubelet.plugin_dir / "other.sock").touch()  # which changes nothing
        kubelet.path_of(stem).unlink()
        running.wait(2)
        assert serves(kubelet)
    assert kubelet.resources == BOTH * 2


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
        assert serves(kubelet)


def test_a_registration_that_is_refused_is_tried_again(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.start()
    kubelet.refuse_next = 2
    with registering(kubelet.plugin_dir) as running:
        running.wait()
    assert kubelet.resources == BOTH
    assert [
        each.__dict__["reason"]
        for each in caplog.records
        if each.getMessage() == "registration failed"
    ] == ["UNKNOWN: the kubelet does not like this"] * 2


def test_a_kubelet_that_comes_is_registered_with_at_once_however_long_the_one_before_refused(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the pods that it admits before: the pause after a failure is the dead one's."""
    monkeypatch.setattr("agent.kubelet.registration._BACKOFF_SECONDS", (3600.0, 3600.0))
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(kubelet.socket))
    left.close()
    with registering(kubelet.plugin_dir) as running:
        eventually(lambda: "registration failed" in caplog.text, "it tries")
        kubelet.start()
        running.wait()
        assert serves(kubelet)


def test_a_stream_that_the_kubelet_cuts_is_registered_again_at_once(kubelet: FakeKubelet) -> None:
    """K18: it drops whoever is registered when an earlier registration's stream breaks."""
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        kubelet.cut("vmemory")
        running.wait(2)
        assert serves(kubelet)
    assert kubelet.resources == BOTH * 2


def test_a_kubelet_that_never_asks_for_the_devices_is_registered_with_again(
    kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off between the registration and its stream: no stream ends that would tell."""
    monkeypatch.setattr("agent.kubelet.registration._STREAM_SECONDS", 0.1)
    kubelet.start()
    kubelet.deaf_to = 1
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
    assert kubelet.resources == BOTH * 2


def test_the_time_without_a_registration_is_told(kubelet: FakeKubelet) -> None:
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait(1)
        kubelet.refuse_next = 1
        kubelet.cut("vcore")
        running.wait(2)
    assert len(running.gaps) == 2
    assert running.gaps[1] >= 0.05  # the pause after the refusal


# --- a kubelet that changes while it is spoken to -------------------------------------


def _reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.__dict__["reason"]
        for each in caplog.records
        if each.getMessage() == "registration failed"
    ]


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """Whether a ``Register`` that hangs is answered at last."""
    event = threading.Event()
    yield event
    event.set()


def test_a_registration_is_left_when_the_kubelet_has_removed_our_sockets(
    kubelet: FakeKubelet, answers: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """A kubelet that starts clears its directory, and would dial what is gone for 10 s (K11)."""

    def clear_and_hang() -> None:
        kubelet.on_register = lambda: None
        for each in kubelet.plugin_dir.glob("v*.sock"):
            each.unlink()
        answers.wait(DEADLINE_S)

    kubelet.on_register = clear_and_hang
    kubelet.start()
    began = time.monotonic()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
        took = time.monotonic() - began
        assert serves(kubelet)
    assert _reasons(caplog) == ["the kubelet has removed our sockets"]
    assert kubelet.resources == [NAMES.core, *BOTH]
    assert took < 4.5  # not the 5 s after which Register gives up
    assert len(running.gaps) == 1


def test_a_registration_is_left_when_the_kubelet_is_replaced(
    kubelet: FakeKubelet, answers: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def replace_and_hang() -> None:
        kubelet.on_register = lambda: None
        kubelet.start_registration()
        answers.wait(DEADLINE_S)

    kubelet.on_register = replace_and_hang
    kubelet.start()
    began = time.monotonic()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
        took = time.monotonic() - began
    assert _reasons(caplog) == ["the kubelet was replaced"]
    assert kubelet.resources == [NAMES.core, *BOTH]
    assert took < 4.5
    assert len(running.gaps) == 1


def _when_first_served(running: Running, happens: Callable[[], None]) -> None:
    """Have something happen while the first socket is being made."""
    make = running._service

    def once(resource: Resource) -> DevicePluginService:
        running._service = make  # type: ignore[method-assign]  # back to how it was
        happens()
        return make(resource)

    running._service = once  # type: ignore[method-assign]  # what the endpoints call


def test_a_kubelet_that_comes_while_the_sockets_are_made_is_registered_with_once(
    kubelet: FakeKubelet,
) -> None:
    """To do it again would cut off calls that it makes already."""
    kubelet.start()
    running = Running(kubelet.plugin_dir)
    _when_first_served(running, kubelet.start_registration)
    with registering(kubelet.plugin_dir, running):
        running.wait()
        (kubelet.plugin_dir / "other.sock").touch()  # what makes it look
        assert serves(kubelet)
    assert kubelet.resources == BOTH


def test_a_kubelet_that_goes_while_the_sockets_are_made_is_waited_for(
    kubelet: FakeKubelet,
) -> None:
    gone = threading.Event()

    def go() -> None:
        kubelet.stop()
        kubelet.socket.unlink(missing_ok=True)
        gone.set()

    kubelet.start()
    running = Running(kubelet.plugin_dir)
    _when_first_served(running, go)
    with registering(kubelet.plugin_dir, running):
        assert gone.wait(DEADLINE_S)
        assert not running.registrar.registered
        kubelet.start()
        running.wait()
        assert serves(kubelet)


def test_a_kubelet_that_takes_its_time_to_register_us_is_given_it(
    kubelet: FakeKubelet, answers: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:

    def slowly() -> None:
        answers.wait(0.2)

    kubelet.on_register = slowly
    kubelet.start()
    with registering(kubelet.plugin_dir) as running:
        running.wait()
    assert _reasons(caplog) == []
    assert kubelet.resources == BOTH
