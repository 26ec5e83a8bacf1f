"""Drivers for Dynamic Resource Allocation behind the proxy, over real sockets."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from proxy.metrics import ProxyMetrics, metrics
from proxy.program import DRA
from tests.proxy.site import WITHIN, Site, wait

DRIVER = "gpu.example.com"


class Driver:
    """One instance of a driver, which names itself in the error of each claim."""

    def __init__(self, folder: Path, name: str, kind: str = "DRAPlugin") -> None:
        self._name, self._kind = name, kind
        self._socket = folder / f"{name}.sock"
        self._servers: list[grpc.Server] = []
        self.registered = False
        self.calls = self.infos = 0
        self.prepared: list[str] = []
        self.asked, self.answers = threading.Event(), threading.Event()
        self.runs = threading.Event()
        self.go_on()
        self._listen(
            self._socket,
            (api.DESCRIPTOR, "DRAPlugin"),
            (health_api.DESCRIPTOR, "DRAResourceHealth"),
        )
        self._listen(folder / f"{name}-reg.sock", (registration.DESCRIPTOR, "Registration"))

    def _listen(self, socket: Path, *services: tuple[FileDescriptor, str]) -> None:
        server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
        for file, service in services:
            add_service(server, file, service, self)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def end(self) -> None:
        for each in self._servers:
            each.stop(None).wait()

    def end_after_its_calls(self) -> None:
        """Listen no more; calls in flight go on."""
        for each in self._servers:
            each.stop(10)

    def hang(self) -> None:
        """Answer nothing until :meth:`go_on`, as a process does that is stopped."""
        self.runs.clear()
        self.answers.clear()

    def go_on(self) -> None:
        self.runs.set()
        self.answers.set()

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        self.infos += 1
        assert self.runs.wait(WITHIN)
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
        assert self.answers.wait(WITHIN)

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls += 1
        if not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        self.asked.set()
        assert self.answers.wait(WITHIN)
        response = api.NodePrepareResourcesResponse()
        for each in request.claims:
            self.prepared.append(each.uid)
            response.claims[each.uid].error = self._name
        return response


class DriverSite(Site):
    """A proxy, and the kubelet's registry of drivers."""

    mode = DRA

    @property
    def registry(self) -> Path:
        return self.kubelet_dir.parent / "plugins_registry"

    @property
    def sockets(self) -> list[Path]:
        return list(self.registry.iterdir())

    def register(self, *known: Path) -> registration.PluginInfo:
        """Register the proxy, as a kubelet does; return what it says of itself."""
        wait("a registration", lambda: len({*self.sockets} - {*known}) == 1)
        (socket,) = {*self.sockets} - {*known}
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = make_stub(channel, registration.DESCRIPTOR, "Registration")
            info: registration.PluginInfo = stub.GetInfo(
                registration.InfoRequest(), timeout=WITHIN, wait_for_ready=True
            )
            stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=True), timeout=5
            )
        return info

    def watch_health(self) -> Iterator[Any]:
        """Connect as a kubelet, and watch the health of devices."""
        (endpoint,) = self.plugin_dir.glob("proxy-*.sock")
        with grpc.insecure_channel(f"unix:{endpoint}") as channel:
            stub = make_stub(channel, health_api.DESCRIPTOR, "DRAResourceHealth")
            yield from stub.NodeWatchResources(health_api.NodeWatchResourcesRequest(), timeout=20)

    @contextmanager
    def calls(self, *known: Path) -> Iterator[Callable[..., str]]:
        """Connect as a kubelet; the function makes one call and returns who has responded."""
        with grpc.insecure_channel(f"unix:{self.register(*known).endpoint}") as channel:
            stub = make_stub(channel, api.DESCRIPTOR, "DRAPlugin")

            def prepare(*uids: str) -> str:
                request = api.NodePrepareResourcesRequest(claims=[api.Claim(uid=u) for u in uids])
                response = stub.NodePrepareResources(request, timeout=20)
                return str(response.claims[uids[0]].error)

            yield prepare


def figures(site: DriverSite) -> dict[str, float]:
    """Return the proxy's metrics of the driver."""
    page = metrics(ProxyMetrics(site.proxy.endpoints, site.proxy.drivers.found, lambda: 0))
    found = re.findall(
        rf'^gpu_turnstile_proxy_(\w+){{resource="{DRIVER}"}} (\S+)$',
        page()[2].decode(),
        re.MULTILINE,
    )
    return {name: float(value) for name, value in found}


@pytest.fixture
def site(folder: Path) -> Iterator[DriverSite]:
    (folder / "plugins_registry").mkdir()
    with DriverSite(folder) as running:
        yield running


def test_the_newest_instance_is_called_and_its_errors_are_passed_on(site: DriverSite) -> None:
    first = Driver(site.plugin_dir, "first")
    with site.calls() as prepare:
        assert first.registered
        assert prepare("a") == "first"
        second = Driver(site.plugin_dir, "second")
        wait("the second is told", lambda: second.registered)
        assert prepare("a") == "second"
        first.end()
        assert prepare("a") == "second"
        with pytest.raises(grpc.RpcError) as failed:
            prepare()
        assert (failed.value.code(), failed.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "no claims",
        )
        with ThreadPoolExecutor(1) as pool:
            second.end()
            call = pool.submit(prepare, "a")
            third = Driver(site.plugin_dir, "third")
            assert call.result() == "third"
        third.end()


def test_a_call_that_the_kubelet_has_cancelled_does_not_reach_the_next_instance(
    site: DriverSite,
) -> None:
    """Its pod was deleted: the next instance would keep a claim that nobody unprepares."""
    first = Driver(site.plugin_dir, "first")
    with grpc.insecure_channel(f"unix:{site.register().endpoint}") as channel:
        stub = make_stub(channel, api.DESCRIPTOR, "DRAPlugin")

        def request(uid: str) -> api.NodePrepareResourcesRequest:
            return api.NodePrepareResourcesRequest(claims=[api.Claim(uid=uid)])

        stub.NodePrepareResources(request("a"), timeout=20)
        first.end()
        waits = stub.NodePrepareResources.future(request("b"), timeout=20)
        with pytest.raises(grpc.FutureTimeoutError):
            waits.result(timeout=0.2)
        waits.cancel()
        last = stub.NodePrepareResources.future(request("c"), timeout=20)
        second = Driver(site.plugin_dir, "second")
        last.result()
        assert second.prepared == ["c"]
        second.end()


def test_a_call_that_an_instance_has_not_answered_when_it_stops_listening_is_answered(
    site: DriverSite,
) -> None:
    first = Driver(site.plugin_dir, "first")
    with site.calls() as prepare, ThreadPoolExecutor(1) as pool:
        first.answers.clear()
        health = site.watch_health()
        next(health)
        call = pool.submit(prepare, "a")
        assert first.asked.wait(10)
        first.end_after_its_calls()
        second = Driver(site.plugin_dir, "second")
        wait("the second is told", lambda: second.registered)
        assert call.result() == "second"
        assert not list(health)
        first.answers.set()
    second.end()


def test_a_driver_that_is_away_for_patience_is_not_registered_any_more(folder: Path) -> None:
    (folder / "plugins_registry").mkdir()
    with DriverSite(folder, patience=0.5) as site:
        first = Driver(site.plugin_dir, "first")
        (info,) = {site.register().endpoint}
        assert (figures(site)["kubelet_registered"], figures(site)["given_up"]) == (1, 0)
        first.end()
        wait("the kubelet may know", lambda: not site.sockets)
        assert (figures(site)["kubelet_registered"], figures(site)["given_up"]) == (0, 1)
        second = Driver(site.plugin_dir, "second")
        assert site.register().endpoint != info
        wait("the next is told", lambda: second.registered)
        assert (figures(site)["kubelet_registered"], figures(site)["given_up"]) == (1, 0)
        second.end()


def test_metrics_show_calls_that_wait_and_that_are_lost(site: DriverSite) -> None:
    first = Driver(site.plugin_dir, "first")
    with site.calls() as prepare, ThreadPoolExecutor(1) as pool:
        assert figures(site) == {
            "connected_plugins": 1,
            "waiting_calls": 0,
            "longest_wait_seconds": 0,
            "kubelet_registered": 1,
            "given_up": 0,
            "asked_again_calls_total": 0,
            "unanswered_calls_total": 0,
        }
        first.end()
        call = pool.submit(prepare, "a")
        wait("it waits", lambda: figures(site)["waiting_calls"] == 1)
        second = Driver(site.plugin_dir, "second")
        assert call.result() == "second"
        found = figures(site)
        assert (found["waiting_calls"], found["unanswered_calls_total"]) == (0, 0)
        assert found["longest_wait_seconds"] > 0
        second.end()
        (driver,) = site.proxy.drivers.found.values()
        driver.longest_call = 0.2
        with pytest.raises(grpc.RpcError, match="has not responded within 0 s"):
            prepare("a")
        assert figures(site)["unanswered_calls_total"] == 1


@pytest.fixture
def impatient(folder: Path) -> Iterator[DriverSite]:
    (folder / "plugins_registry").mkdir()
    with DriverSite(folder, patience=1.0) as running:
        yield running


def test_a_driver_that_hangs_gets_no_calls_until_it_responds(impatient: DriverSite) -> None:
    older = Driver(impatient.plugin_dir, "older")
    with impatient.calls() as prepare:
        newer = Driver(impatient.plugin_dir, "newer")
        wait("the newer is told", lambda: newer.registered)
        newer.hang()
        assert prepare("a") == "older"
        assert figures(impatient)["asked_again_calls_total"] == 1
        called = newer.calls
        assert prepare("b") == "older"
        assert newer.calls == called
        newer.go_on()
        wait("the newer is called", lambda: prepare("c") == "newer")
        assert figures(impatient)["unanswered_calls_total"] == 0
    for each in (older, newer):
        each.end()


def test_a_call_to_a_driver_that_hangs_waits_until_it_responds(impatient: DriverSite) -> None:
    driver = Driver(impatient.plugin_dir, "driver")
    with impatient.calls() as prepare, ThreadPoolExecutor(1) as pool:
        driver.hang()
        call = pool.submit(prepare, "a")
        wait("the call waits", lambda: figures(impatient)["waiting_calls"] == 1)
        driver.go_on()
        assert call.result() == "driver"
        assert figures(impatient)["asked_again_calls_total"] == 1
    driver.end()


def test_a_driver_that_hangs_for_longer_is_not_registered_until_it_responds(
    impatient: DriverSite,
) -> None:
    driver = Driver(impatient.plugin_dir, "driver")
    with impatient.calls() as prepare, ThreadPoolExecutor(1) as pool:
        driver.hang()
        call = pool.submit(prepare, "a")
        wait("the kubelet may know", lambda: not impatient.sockets)
        assert call.exception() is not None
        assert figures(impatient)["given_up"] == 1
        driver.go_on()
    with impatient.calls() as prepare:
        assert prepare("a") == "driver"
        assert figures(impatient)["given_up"] == 0
    driver.end()


def test_a_slow_driver_that_responds_to_a_test_call_keeps_its_call(impatient: DriverSite) -> None:
    driver = Driver(impatient.plugin_dir, "driver")
    with impatient.calls() as prepare, ThreadPoolExecutor(1) as pool:
        driver.answers.clear()
        call = pool.submit(prepare, "a")
        wait("it is tested", lambda: driver.infos > 2)
        driver.answers.set()
        assert call.result() == "driver"
        assert driver.calls == 1
    driver.end()


def test_only_drivers_are_registered(site: DriverSite) -> None:
    other = Driver(site.plugin_dir, "csi", kind="CSIPlugin")
    driver = Driver(site.plugin_dir, "driver")
    with site.calls() as prepare:
        assert prepare("a") == "driver"
    assert not other.registered
    for each in (other, driver):
        each.end()


def test_with_drivers_no_device_plugin_is_served(site: DriverSite) -> None:
    """An agent for device plugins may end later than the node's change: the kubelet forgets it."""
    driver = Driver(site.plugin_dir, "driver")
    site.register()
    assert not (site.plugin_dir / "kubelet.sock").exists()
    driver.end()


def test_with_device_plugins_no_driver_is_served(folder: Path) -> None:
    (folder / "plugins_registry").mkdir()
    with Site(folder) as site:
        driver = Driver(site.plugin_dir, "driver")
        site.served()
        assert not list((folder / "plugins_registry").iterdir())
        driver.end()


def test_the_proxys_page_says_why_a_driver_is_not_registered(folder: Path) -> None:
    with DriverSite(folder) as site:
        driver = Driver(site.plugin_dir, "driver")
        missing = f"driver {DRIVER} is not registered with the kubelet: cannot listen on "
        wait("the folder is missing", lambda: site.proxy.readiness_problem().startswith(missing))
        site.registry.mkdir()
        wait("it waits", lambda: site.proxy.readiness_problem().endswith("no kubelet is running"))
        site.register()
        assert site.proxy.readiness_problem() == ""
        driver.end()


def test_a_proxys_end_leaves_no_socket(site: DriverSite) -> None:
    driver = Driver(site.plugin_dir, "driver")
    site.register()
    site.stop_proxy()
    assert not site.sockets
    driver.end()


def test_a_proxy_ends_after_the_calls_in_progress(site: DriverSite) -> None:
    driver = Driver(site.plugin_dir, "driver")
    driver.answers.clear()
    with site.calls() as prepare, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(prepare, "a")]
        wait("the driver is called", lambda: driver.calls == 1)
        wait_for_end = site.ask_to_end()
        calls.append(pool.submit(prepare, "b"))
        wait("the driver is called again", lambda: driver.calls == 2)
        assert site.sockets  # a kubelet that does not find it ends its calls
        driver.answers.set()
        assert [each.result() for each in calls] == ["driver", "driver"]
        wait_for_end()
    assert not site.sockets
    driver.end()


def test_with_the_next_proxy_beside_it_a_proxys_end_is_free(site: DriverSite) -> None:
    """As in a rolling update: a kubelet calls the newest registration."""
    driver = Driver(site.plugin_dir, "driver")
    with site.calls() as by_old, ThreadPoolExecutor(2) as pool:
        old = site.sockets
        ask_old_to_end = site.surge()
        assert site.proxy.readiness_problem()  # a rollout waits until the kubelet knows the new one
        with site.calls(*old) as by_new:
            wait("it is ready", lambda: not site.proxy.readiness_problem())
            driver.answers.clear()
            calls = [pool.submit(by_old, "a")]
            wait("the driver is called", lambda: driver.calls == 1)
            wait_for_end = ask_old_to_end()
            calls.append(pool.submit(by_new, "b"))
            wait("the driver is called again", lambda: driver.calls == 2)
            driver.answers.set()
            assert [each.result() for each in calls] == ["driver", "driver"]
            wait_for_end()
            assert by_new("c") == "driver"
            assert len(site.sockets) == 1
            assert site.sockets != old
    driver.end()
