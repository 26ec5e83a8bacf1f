"""The driver's server: calls that are cancelled, and the stream of the devices' health."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.dra.server import DriverServer
from common.kubelet_api import dra_pb2 as pb
from common.kubelet_api import drahealth_pb2 as health_pb
from tests.agent.dra.a_claim import DRIVER, DraKubelet, channel_to, claims_stub, message_of
from tests.agent.dra.claim_node import ClaimNode, free
from tests.agent.fakes import DEADLINE_S, FakeClock, short_dir
from tests.agent.threads import running


@pytest.fixture
def sockets() -> Iterator[Path]:
    with short_dir() as made:
        yield made


def test_a_call_that_the_kubelet_has_cancelled_prepares_nothing(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod was deleted meanwhile: ``NodeUnprepareResources`` is not called again."""
    called, released, ended = (threading.Event() for _ in range(3))
    node, kubelet = ClaimNode(sockets), DraKubelet(sockets)
    ref, driver = node.add("a", "gpu-0", 30, 4), node.driver()
    prepare = driver.prepare

    def get_claim(namespace: str, name: str) -> Any:
        called.set()
        released.wait(DEADLINE_S)
        return node.claims[name]

    def watched(*args: Any) -> Any:
        try:
            return prepare(*args)
        finally:
            ended.set()

    server = DriverServer(driver, plugins=sockets / DRIVER, registry=sockets / "plugins_registry")
    with running(server.run, server.stop), monkeypatch.context() as patch:
        kubelet.register()
        patch.setattr(node, "get_claim", get_claim)
        patch.setattr(driver, "prepare", watched)
        with channel_to(kubelet.endpoint) as channel:
            stub, claims = claims_stub(channel), [message_of(ref)]
            call = stub.NodePrepareResources.future(pb.NodePrepareResourcesRequest(claims=claims))
            assert called.wait(DEADLINE_S)
            call.cancel()
            stub.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=claims))
            released.set()
            assert ended.wait(DEADLINE_S)
        assert node.specs() == set()
        assert free(driver) == [100, 100]
        patch.undo()
        assert kubelet.prepare(ref)[ref.uid].error == ""


def test_sockets_stay_while_they_exist_and_are_made_again(sockets: Path) -> None:
    registry = sockets / "registry"
    registry.mkdir()
    seen: list[list[Path]] = []

    def pause(_seconds: float) -> None:
        seen.append(list(registry.iterdir()))
        if len(seen) == 2:
            seen[-1][0].unlink()
        elif len(seen) == 3:
            server.stop()

    driver = ClaimNode(sockets).driver()
    server = DriverServer(driver, plugins=sockets / DRIVER, registry=registry, pause=pause)
    server.run()
    assert len(seen[0]) == len(seen[2]) == 1
    assert seen[0] == seen[1] != seen[2]


def test_health_is_sent_at_once_within_a_second_of_a_change_and_every_ten_seconds(
    claims: ClaimNode,
) -> None:
    clock, ends = FakeClock(), [10_000.0]
    began = clock.now

    def pause(seconds: float) -> None:
        clock.now += seconds

    context: Any = SimpleNamespace(is_active=lambda: clock.now < ends[0])
    driver = claims.driver()
    server = DriverServer(driver, plugins=Path(), registry=Path(), clock=clock, pause=pause)
    stream = server.NodeWatchResources(health_pb.NodeWatchResourcesRequest(), context)

    def following() -> tuple[float, list[tuple[object, ...]]]:
        devices = next(stream).devices
        assert {each.health_check_timeout_seconds for each in devices} == {60}
        assert {each.device.pool_name for each in devices} == {"n1"}
        return clock.now - began, [
            (each.device.device_name, each.health, each.message) for each in devices
        ]

    well = [(f"gpu-{at}", health_pb.HEALTHY, "") for at in range(2)]
    assert following() == (0, well)
    assert following() == (10, well)
    claims.unhealthy = {"GPU-1": "Xid 79"}
    assert following() == (11, [well[0], ("gpu-1", health_pb.UNHEALTHY, "Xid 79")])
    ends[0] = clock.now + 5  # then the kubelet has ended the call
    assert list(stream) == []
