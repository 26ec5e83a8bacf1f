"""The client of CRI, against a fake runtime on a real unix socket."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.errors import Unavailable
from agent.runtime.api import runtime_pb2
from agent.runtime.cri import ContainerInfo, Cri
from common.grpc_services import add_service
from tests.agent.fakes import FakeClock

ID, OTHER = "4aa6" * 16, "9e07" * 16
LABELS = {
    "io.kubernetes.container.name": "train",
    "io.kubernetes.pod.uid": "27882189-b4d9-11e9-b287-ec0d9ae89a20",
}
INFO = ContainerInfo("train", "27882189-b4d9-11e9-b287-ec0d9ae89a20", ended=False)


def entry(labels: dict[str, str] = LABELS, **changes: Any) -> runtime_pb2.Container:
    running = {"id": ID, "pod_sandbox_id": OTHER, "state": runtime_pb2.CONTAINER_RUNNING}
    return runtime_pb2.Container(labels=labels, **{**running, **changes})


class FakeRuntime:
    """A runtime whose containers a test writes; like containerd it accepts a part of an ID."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.containers: list[runtime_pb2.Container] = [entry()]
        self.sandboxes = [runtime_pb2.PodSandbox(id=OTHER, created_at=1)]
        self.codes: dict[str, int] = {}
        self.requested: list[str] = []
        self.within: list[float] = []
        self.on_call: Callable[[], object] = lambda: None
        self.fails: grpc.StatusCode | None = None
        self.starting = 0
        self._server: grpc.Server | None = None

    def start(self) -> None:
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_service(server, runtime_pb2.DESCRIPTOR, "RuntimeService", self)
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None

    def _log_call(self, context: grpc.ServicerContext) -> None:
        self.within.append(context.time_remaining())
        self.on_call()
        if self.fails is not None:
            starting, self.starting = self.starting, max(self.starting - 1, 0)
            context.abort(
                self.fails, "server is not initialized yet" if starting else "out of order"
            )

    def ListPodSandbox(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._log_call(context)
        assert dict(request.filter.label_selector) == {"io.kubernetes.pod.uid": INFO.pod_uid}
        return runtime_pb2.ListPodSandboxResponse(items=self.sandboxes)

    def ContainerStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._log_call(context)
        code = self.codes[request.container_id]
        status = runtime_pb2.ContainerStatus(id=request.container_id, exit_code=code)
        return runtime_pb2.ContainerStatusResponse(status=status)

    def ListContainers(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.requested.append(request.filter.id)
        self._log_call(context)
        found = [
            each
            for each in self.containers
            if each.id.startswith(request.filter.id)
            and request.filter.pod_sandbox_id in ("", each.pod_sandbox_id)
        ]
        return runtime_pb2.ListContainersResponse(containers=found)


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A socket in an empty folder; the folder's whole path may be too long for a socket."""
    monkeypatch.chdir(tmp_path)
    return Path("cri.sock")


@pytest.fixture
def runtime(socket: Path) -> Iterator[FakeRuntime]:
    fake = FakeRuntime(socket)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def cri(runtime: FakeRuntime) -> Iterator[Cri]:
    client = Cri(runtime.socket)
    yield client
    client.close()


def test_a_container_is_identified_by_its_labels(runtime: FakeRuntime, cri: Cri) -> None:
    runtime.containers.append(entry(id=OTHER))
    assert cri.container(ID, within=60) == INFO
    assert runtime.requested == [ID]


def test_only_exited_containers_have_ended(runtime: FakeRuntime, cri: Cri) -> None:
    for state in (0, 1, 2, 3, 17):
        runtime.containers = [entry(state=state)]
        assert cri.container(ID, within=60) == replace(INFO, ended=state == 2)


@pytest.mark.parametrize("container_id", [OTHER, ID[:12], ""])
def test_an_incomplete_container_id_is_none(
    runtime: FakeRuntime, cri: Cri, container_id: str
) -> None:
    """The runtime accepts a part of an ID, and no ID for all containers."""
    assert cri.container(container_id, within=60) is None


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_container_without_a_kubelets_labels_is_none(
    runtime: FakeRuntime, cri: Cri, label: str
) -> None:
    rest = {key: text for key, text in LABELS.items() if key != label}
    for value in ("", "../../etc", "a\0b", "a\n", "-", "x" * 300, "ü"):
        runtime.containers = [entry({**rest, label: value})]
        assert cri.container(ID, within=60) is None, value
    runtime.containers = [entry(rest)]
    assert cri.container(ID, within=60) is None


def test_a_response_beyond_grpcs_default_size_is_read(runtime: FakeRuntime, cri: Cri) -> None:
    runtime.containers = [entry({"big": "x" * (6 << 20)}, id=f"{ID}0"), entry()]
    assert cri.container(ID, within=60) == INFO


def test_every_error_of_the_runtime_is_raised_as_unavailable(
    runtime: FakeRuntime, cri: Cri
) -> None:
    for code in set(grpc.StatusCode) - {grpc.StatusCode.OK}:
        runtime.fails = code
        with pytest.raises(Unavailable) as error:
            cri.container(ID, within=60)
        assert str(error.value) == f"CRI: {code.name}: out of order"
    with pytest.raises(Unavailable, match=r"^CRI: [A-Z_]+: out of order$"):
        cri.succeeded(INFO.pod_uid, within=60)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE])
def test_a_containerd_that_is_starting_is_waited_for(
    runtime: FakeRuntime, cri: Cri, code: grpc.StatusCode
) -> None:
    """containerd 1.6, and 2: its socket is served before its CRI."""
    runtime.fails = code

    def serve_once_started() -> None:
        if not runtime.starting:
            runtime.fails = None

    runtime.on_call = serve_once_started
    runtime.starting = 2
    assert cri.container(ID, within=60) == INFO
    runtime.fails, runtime.starting = code, 2
    assert cri.succeeded(INFO.pod_uid, within=60) == frozenset()
    runtime.fails, runtime.starting = code, 1 << 20
    with pytest.raises(Unavailable, match=r"^CRI: [A-Z_]+: server is not initialized yet$"):
        cri.container(ID, within=2)


def test_an_absent_socket_is_reported_at_once(socket: Path) -> None:
    client = Cri(socket)
    with pytest.raises(Unavailable) as error:
        client.container(ID, within=60)
    client.close()
    assert str(error.value) == "CRI: no socket at cri.sock"


def test_a_request_to_a_socket_without_a_server_ends_at_the_deadline(socket: Path) -> None:
    socket.touch()
    client = Cri(socket)
    with pytest.raises(Unavailable, match=r"^CRI: DEADLINE_EXCEEDED: "):
        client.container(ID, within=0.3)
    client.close()


def test_a_restarted_runtime_is_reached_again(runtime: FakeRuntime, cri: Cri) -> None:
    assert cri.container(ID, within=60) == INFO
    for _ in range(3):
        runtime.stop()
        with pytest.raises(Unavailable):
            cri.container(ID, within=0.1)
        runtime.start()
        assert cri.container(ID, within=60) == INFO


def test_a_closed_client_sends_no_request(runtime: FakeRuntime, cri: Cri) -> None:
    cri.close()
    with pytest.raises(Unavailable, match=r"^CRI: closed$"):
        cri.container(ID, within=60)
    assert runtime.requested == []
    cri.close()


# --- containers that succeeded ------------------------------------------------------------


def ended(name: str, created: int = 0, **changes: Any) -> runtime_pb2.Container:
    exited = {"id": f"{name}-{created}", "state": runtime_pb2.CONTAINER_EXITED}
    labels = LABELS | {"io.kubernetes.container.name": name}
    return entry(labels, created_at=created, **{**exited, **changes})


def test_containers_that_ended_with_0_are_named_by_their_last_attempt(
    runtime: FakeRuntime, cri: Cri
) -> None:
    runtime.containers = [
        ended("tried-again", 2),
        ended("tried-again", 1),
        ended("failed", 2),
        ended("failed", 1),
        ended("runs", 1),
        ended("runs", 2, state=runtime_pb2.CONTAINER_RUNNING),
    ]
    runtime.codes = {"tried-again-1": 1, "tried-again-2": 0, "failed-1": 0, "failed-2": 137}
    assert cri.succeeded(INFO.pod_uid, within=60) == {"tried-again"}


def test_in_a_new_sandbox_no_container_has_succeeded(runtime: FakeRuntime, cri: Cri) -> None:
    runtime.sandboxes = [
        runtime_pb2.PodSandbox(id="old", created_at=1),
        runtime_pb2.PodSandbox(id="new", created_at=2),
    ]
    runtime.containers = [ended("init", 1, pod_sandbox_id="old")]
    runtime.codes = {"init-1": 0}
    assert cri.succeeded(INFO.pod_uid, within=60) == frozenset()
    runtime.sandboxes.clear()  # an unknown pod has none
    assert cri.succeeded(INFO.pod_uid, within=60) == frozenset()


def test_all_requests_share_one_deadline(runtime: FakeRuntime) -> None:
    clock = FakeClock()

    def take_20_seconds() -> None:
        clock.now += 20

    runtime.on_call = take_20_seconds
    runtime.containers = [ended("init", 1)]
    runtime.codes = {"init-1": 0}
    client = Cri(runtime.socket, clock=clock)
    assert client.succeeded(INFO.pod_uid, within=60) == {"init"}
    client.close()
    for remaining, most in zip(runtime.within, (60, 40, 20), strict=True):
        assert 0 < remaining < most + 1  # gRPC rounds up
