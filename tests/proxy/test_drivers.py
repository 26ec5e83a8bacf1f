"""Drivers for Dynamic Resource Allocation behind the proxy, over real sockets."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from common.kubelet_api import dra_pb2 as api
from common.kubelet_api import dra_pb2_grpc as rpc
from common.kubelet_api import pluginregistration_pb2 as registration
from common.kubelet_api import pluginregistration_pb2_grpc as registration_rpc
from proxy.program import DRA
from tests.proxy.site import Site, wait

DRIVER = "gpu.example.com"


class Driver(rpc.DRAPluginServicer, registration_rpc.RegistrationServicer):
    """One instance of a driver, which names itself in the error of each claim."""

    def __init__(self, folder: Path, name: str, kind: str = "DRAPlugin") -> None:
        self._name, self._kind = name, kind
        self._socket = folder / f"{name}.sock"
        self._servers: list[grpc.Server] = []
        self.registered = False
        self._listen(self._socket, rpc.add_DRAPluginServicer_to_server)
        self._listen(
            folder / f"{name}-reg.sock", registration_rpc.add_RegistrationServicer_to_server
        )

    def _listen(self, socket: Path, add: Callable[[Any, grpc.Server], None]) -> None:
        server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
        add(self, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def end(self) -> None:
        for each in self._servers:
            each.stop(None).wait()

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=self._kind,
            name=DRIVER,
            endpoint=str(self._socket),
            supported_versions=["v1.DRAPlugin"],
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self.registered = request.plugin_registered
        return registration.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.claims:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        response = api.NodePrepareResourcesResponse()
        for each in request.claims:
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

    def register(self) -> registration.PluginInfo:
        """Register the proxy, as a kubelet does; return what it says of itself."""
        wait("a registration", lambda: len(self.sockets) == 1)
        with grpc.insecure_channel(f"unix:{self.sockets[0]}") as channel:
            stub = registration_rpc.RegistrationStub(channel)
            info: registration.PluginInfo = stub.GetInfo(registration.InfoRequest(), timeout=5)
            stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=True), timeout=5
            )
        return info

    @contextmanager
    def calls(self) -> Iterator[Callable[..., str]]:
        """Connect as a kubelet; the function makes one call and returns who has responded."""
        with grpc.insecure_channel(f"unix:{self.register().endpoint}") as channel:
            stub = rpc.DRAPluginStub(channel)

            def prepare(*uids: str) -> str:
                request = api.NodePrepareResourcesRequest(claims=[api.Claim(uid=u) for u in uids])
                response = stub.NodePrepareResources(request, timeout=20)
                return str(response.claims[uids[0]].error)

            yield prepare


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


def test_a_driver_that_is_away_for_patience_is_not_registered_any_more(folder: Path) -> None:
    (folder / "plugins_registry").mkdir()
    with DriverSite(folder, patience=0.5) as site:
        first = Driver(site.plugin_dir, "first")
        (info,) = {site.register().endpoint}
        first.end()
        wait("the kubelet may know", lambda: not site.sockets)
        second = Driver(site.plugin_dir, "second")
        assert site.register().endpoint != info
        wait("the next is told", lambda: second.registered)
        second.end()


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
