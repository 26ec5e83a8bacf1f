"""Drivers for Dynamic Resource Allocation behind the proxy, over real sockets."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor

from common.grpc_services import add_service, make_stub
from common.kubelet_api import dra_pb2 as api
from common.kubelet_api import drahealth_pb2 as health_api
from common.kubelet_api import pluginregistration_pb2 as registration
from proxy.program import DRA, PLUGIN
from tests.proxy.plugin import WITHIN
from tests.proxy.site import Site, wait

DRIVER = "gpu.example.com"
PATIENCE = 20.0
"""Less than a call may take, which is 40 s."""


class Driver:
    """One instance of a driver, which names itself in the error of each claim."""

    def __init__(self, folder: Path, name: str, kind: str = "DRAPlugin") -> None:
        self._name, self._kind = name, kind
        self._socket = folder / f"{name}.sock"
        self._servers: list[grpc.Server] = []
        self.registered = False
        self.calls = self.infos = 0
        self.prepared: list[str] = []
        self._prepares, self._runs = threading.Event(), threading.Event()
        self.go_on()
        self._listen(
            self._socket,
            (api.DESCRIPTOR, "DRAPlugin"),
            (health_api.DESCRIPTOR, "DRAResourceHealth"),
        )
        self._listen(folder / f"{name}-reg.sock", (registration.DESCRIPTOR, "Registration"))

    def _listen(self, socket: Path, *services: tuple[FileDescriptor, str]) -> None:
        server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
        for file, service in services:
            add_service(server, file, service, self)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def end(self) -> None:
        stopped = [each.stop(None) for each in self._servers]
        self.go_on()
        for each in stopped:
            each.wait()

    def stop_listening(self) -> None:
        for each in self._servers:
            each.stop(WITHIN)

    def hang(self, *, tests_too: bool = True) -> None:
        """Respond to no claim until :meth:`go_on`, and to no test call, as a stopped process."""
        self._prepares.clear()
        if tests_too:
            self._runs.clear()

    def go_on(self) -> None:
        self._runs.set()
        self._prepares.set()

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        self.infos += 1
        assert self._runs.wait(WITHIN)
        return registration.PluginInfo(
            type=self._kind,
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=["v1.DRAPlugin"],
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.registered = request.plugin_registered
        return registration.RegistrationStatusResponse()

    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:
        yield health_api.NodeWatchResourcesResponse()
        assert self._prepares.wait(WITHIN)

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls += 1
        if not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        assert self._prepares.wait(WITHIN)
        response = api.NodePrepareResourcesResponse()
        for each in request.claims:
            self.prepared.append(each.uid)
            response.claims[each.uid].error = self._name
        return response


class DriverSite(Site):
    mode = DRA

    def __init__(self, folder: Path, **how: float) -> None:
        super().__init__(folder, **how)
        self.registry = folder / "plugins_registry"
        self._drivers: list[Driver] = []

    def __exit__(self, *raised: object) -> None:
        for each in self._drivers:
            each.end()
        super().__exit__(*raised)

    def driver(self, name: str = "driver", **how: Any) -> Driver:
        self._drivers.append(Driver(self.plugin_dir, name, **how))
        return self._drivers[-1]

    @property
    def sockets(self) -> list[Path]:
        return list(self.registry.iterdir())

    def figures(self) -> dict[str, float]:
        return self.metrics(DRIVER)

    def register(self, *known: Path) -> registration.PluginInfo:
        wait("a registration", lambda: len({*self.sockets} - {*known}) == 1)
        (socket,) = {*self.sockets} - {*known}
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = make_stub(channel, registration.DESCRIPTOR, "Registration")
            how = {"timeout": WITHIN, "wait_for_ready": True}
            info: registration.PluginInfo = stub.GetInfo(registration.InfoRequest(), **how)
            status = registration.RegistrationStatus(plugin_registered=True)
            stub.NotifyRegistrationStatus(status, **how)
        return info

    def watch_health(self) -> Iterator[Any]:
        (endpoint,) = self.plugin_dir.glob("proxy-*.sock")
        with grpc.insecure_channel(f"unix:{endpoint}") as channel:
            stub = make_stub(channel, health_api.DESCRIPTOR, "DRAResourceHealth")
            yield from stub.NodeWatchResources(
                health_api.NodeWatchResourcesRequest(), timeout=WITHIN, wait_for_ready=True
            )

    @contextmanager
    def connect(self, *known: Path) -> Iterator[Callable[..., str]]:
        """Connect as a kubelet; the function prepares claims and returns the responding driver."""
        with grpc.insecure_channel(f"unix:{self.register(*known).endpoint}") as channel:
            stub = make_stub(channel, api.DESCRIPTOR, "DRAPlugin")

            def prepare(*uids: str) -> str:
                request = api.NodePrepareResourcesRequest(claims=[api.Claim(uid=u) for u in uids])
                response = stub.NodePrepareResources(request, timeout=WITHIN, wait_for_ready=True)
                return str(response.claims[uids[0]].error)

            yield prepare


Prepare = Callable[..., str]


@pytest.fixture
def site(short_folder: Path) -> Iterator[DriverSite]:
    (short_folder / "plugins_registry").mkdir()
    with DriverSite(short_folder, patience=PATIENCE) as running:
        yield running


def begin_hung_call(site: DriverSite, prepare: Prepare, hung: Driver) -> Future[str]:
    """Call a driver that hangs, and let its patience end; return when its test call has begun."""
    calls, infos = hung.calls, hung.infos
    call = site.begin(lambda: prepare("a"))
    wait("it is called", lambda: hung.calls > calls)
    site.clock.advance(PATIENCE)
    wait("it is tested", lambda: hung.infos > infos)
    return call


def test_the_newest_instance_is_called_and_its_errors_pass_unchanged(site: DriverSite) -> None:
    first = site.driver("first")
    with site.connect() as prepare:
        wait("the first is notified", lambda: first.registered)
        assert prepare("a") == "first"
        second = site.driver("second")
        wait("the second is notified", lambda: second.registered)
        assert prepare("a") == "second"
        first.end()
        assert prepare("a") == "second"
        with pytest.raises(grpc.RpcError) as failed:
            prepare()
        assert (failed.value.code(), failed.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "no claims",
        )
        second.end()
        call = site.begin(lambda: prepare("a"))
        site.driver("third")
        assert call.result(WITHIN) == "third"


def test_a_call_that_the_kubelet_has_cancelled_does_not_reach_the_next_instance(
    site: DriverSite,
) -> None:
    """Its pod was deleted: the next instance would keep a claim that is never unprepared."""
    first = site.driver("first")
    with grpc.insecure_channel(f"unix:{site.register().endpoint}") as channel:
        stub = make_stub(channel, api.DESCRIPTOR, "DRAPlugin")

        def begin(uid: str) -> Any:
            request = api.NodePrepareResourcesRequest(claims=[api.Claim(uid=uid)])
            return stub.NodePrepareResources.future(request, timeout=WITHIN, wait_for_ready=True)

        begin("a").result()
        first.end()
        waiting = begin("b")
        wait("it waits", lambda: site.figures()["waiting_calls"] == 1)
        waiting.cancel()
        wait("it is cancelled", lambda: site.figures()["waiting_calls"] == 0)
        following = begin("c")
        second = site.driver("second")
        following.result()
        assert second.prepared == ["c"]


def test_calls_of_an_instance_that_stops_listening_go_to_the_next_one(site: DriverSite) -> None:
    first = site.driver("first")
    with site.connect() as prepare:
        first.hang(tests_too=False)
        health = site.watch_health()
        next(health)
        call = site.begin(lambda: prepare("a"))
        wait("it is called", lambda: first.calls == 1)
        first.stop_listening()
        second = site.driver("second")
        wait("the second is notified", lambda: second.registered)
        assert call.result(WITHIN) == "second"
        assert not list(health)


def test_a_driver_without_an_instance_for_patience_is_not_registered(site: DriverSite) -> None:
    first = site.driver("first")
    endpoint = site.register().endpoint
    assert (site.figures()["kubelet_registered"], site.figures()["given_up"]) == (1, 0)
    first.end()
    wait("its end is noticed", lambda: site.figures()["connected_plugins"] == 0)
    site.clock.advance(PATIENCE)
    wait("the kubelet is not served", lambda: not site.sockets)
    assert (site.figures()["kubelet_registered"], site.figures()["given_up"]) == (0, 1)
    second = site.driver("second")
    assert site.register().endpoint != endpoint
    wait("the second is notified", lambda: second.registered)
    assert (site.figures()["kubelet_registered"], site.figures()["given_up"]) == (1, 0)


def test_a_hung_driver_gets_no_calls_until_it_responds(site: DriverSite) -> None:
    site.driver("older")
    with site.connect() as prepare:
        newer = site.driver("newer")
        wait("the newer is notified", lambda: newer.registered)
        newer.hang()
        call = begin_hung_call(site, prepare, newer)
        site.clock.advance(1)
        assert call.result(WITHIN) == "older"
        assert site.figures()["asked_again_calls_total"] == 1
        assert prepare("b") == "older"
        assert newer.calls == 1
        newer.go_on()
        wait("the newer is called", lambda: prepare("c") == "newer")
        assert site.figures()["unanswered_calls_total"] == 0


def test_calls_wait_for_a_hung_driver_which_is_not_registered_after_patience(
    site: DriverSite,
) -> None:
    hung = site.driver()
    with site.connect() as prepare:
        hung.hang()
        call = begin_hung_call(site, prepare, hung)
        site.clock.advance(1)
        wait("the call waits", lambda: site.figures()["waiting_calls"] == 1)
        hung.go_on()
        assert call.result(WITHIN) == "driver"
        assert site.figures()["asked_again_calls_total"] == 1
        hung.hang()
        call = begin_hung_call(site, prepare, hung)
        site.clock.advance(1)
        wait("the call waits", lambda: site.figures()["waiting_calls"] == 1)
        site.clock.advance(PATIENCE)
        wait("the kubelet is not served", lambda: not site.sockets)
        assert isinstance(call.exception(WITHIN), grpc.RpcError)
        assert site.figures()["given_up"] == 1
        hung.go_on()
        site.advance_until("the kubelet is served", lambda: site.sockets)
    with site.connect() as prepare:
        assert prepare("a") == "driver"
        assert site.figures()["given_up"] == 0


def test_a_driver_that_responds_to_a_test_call_has_40_s_for_a_claim(site: DriverSite) -> None:
    slow = site.driver()
    with site.connect() as prepare:
        slow.hang(tests_too=False)
        call = begin_hung_call(site, prepare, slow)
        slow.go_on()
        assert call.result(WITHIN) == "driver"
        assert slow.calls == 1
        slow.hang(tests_too=False)
        call = begin_hung_call(site, prepare, slow)
        site.clock.advance(40 - PATIENCE)
        with pytest.raises(grpc.RpcError, match="has not responded within 40 s"):
            call.result(WITHIN)
        assert site.figures()["unanswered_calls_total"] == 1


def test_only_drivers_are_served(site: DriverSite) -> None:
    """An agent for device plugins may end later than the node's change: the kubelet forgets it."""
    other = site.driver("csi", kind="CSIPlugin")
    site.driver()
    with site.connect() as prepare:
        assert prepare("a") == "driver"
    assert not other.registered
    assert not (site.plugin_dir / "kubelet.sock").exists()


def test_with_device_plugins_drivers_are_not_served(short_folder: Path) -> None:
    site = DriverSite(short_folder)
    site.mode = PLUGIN
    site.registry.mkdir()
    with site:
        site.driver()
        site.plugin().register()
        site.wait_known()
        assert not site.sockets


def test_readiness_names_the_reason_why_a_driver_is_not_registered(short_folder: Path) -> None:
    with DriverSite(short_folder) as site:
        site.driver()
        missing = f"driver {DRIVER} is not registered with the kubelet: cannot listen on "
        wait("the folder is missing", lambda: site.proxy.readiness_problem().startswith(missing))
        site.registry.mkdir()
        site.advance_until(
            "it waits", lambda: site.proxy.readiness_problem().endswith("no kubelet is running")
        )
        site.register()
        assert site.proxy.readiness_problem() == ""


def test_a_proxy_ends_after_its_calls_beside_the_next_one(site: DriverSite) -> None:
    """As in a rolling update: a kubelet calls the newest registration."""
    slow = site.driver()
    with site.connect() as by_old:
        old = site.sockets
        terminate_old = site.surge()
        assert site.proxy.readiness_problem()  # a rollout waits until the kubelet knows the new one
        with site.connect(*old) as by_new:
            wait("it is ready", lambda: not site.proxy.readiness_problem())
            slow.hang(tests_too=False)
            calls = [site.begin(lambda: by_old("a"))]
            wait("the driver is called", lambda: slow.calls == 1)
            wait_for_end = terminate_old()
            calls += [site.begin(lambda: by_old("b")), site.begin(lambda: by_new("c"))]
            wait("the driver is called again", lambda: slow.calls == 3)
            assert {*old} < {*site.sockets}  # a kubelet that does not find it ends its calls
            slow.go_on()
            assert [each.result(WITHIN) for each in calls] == ["driver"] * 3
            wait_for_end()
            assert by_new("d") == "driver"
            assert len(site.sockets) == 1
            assert site.sockets != old
