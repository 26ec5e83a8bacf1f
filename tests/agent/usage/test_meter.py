"""Repeated measurements of use: requests, known containers, reports and problems."""

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from agent.cards.card_use import CardUse
from agent.errors import Unavailable
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings, make_key
from agent.runtime.cgroups import Cgroups, ContainerCgroup
from agent.runtime.cri import ContainerInfo, Cri
from agent.usage.join import MeasuredUse, NodeMeasurement, Overuse
from agent.usage.meter import Meter, Owners
from contract.inventory import Amounts
from tests.agent.builders import BLOCK, device_table, pod_id

REF = ContainerRef(pod_id("a", "uid-a"), "main")
CARDS = device_table(1, blocks=16).inventory.cards
HOLDINGS = NodeHoldings.of(
    [Holding(REF, make_key("a"), {"GPU-0": Amounts(50, 8)}, False, runtime_uid="uid-a")],
    CARDS,
    BLOCK,
)
ID = "a" * 64


@dataclass
class World:
    """Driver, kernel, runtime and holdings, as a test wants them."""

    cards: dict[str, CardUse] = field(
        default_factory=lambda: {"GPU-0": CardUse(70, 9, {7: 90}, {7: 5, 8: 1})}
    )
    holdings: NodeHoldings | None = HOLDINGS
    problem: str = ""
    now: float = 100.0
    since: int = 0
    requested: list[str] = field(default_factory=list)
    overuses: list[Overuse] = field(default_factory=list)
    closed: bool = False

    def read(self, uuids: Collection[str], since: int) -> Mapping[str, CardUse]:
        assert list(uuids) == ["GPU-0"]
        if self.problem:
            raise Unavailable(self.problem)
        self.since = since
        return self.cards

    def containers_of(self, pids: Iterable[int]) -> Mapping[int, ContainerCgroup]:
        cgroup, other = ContainerCgroup(ID, "uid-a", ()), ContainerCgroup("b" * 64, None, ())
        return {pid: cgroup if pid == 7 else other for pid in pids}

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        self.requested.append(container_id[:1])
        if container_id != ID:  # not from a kubelet
            return None
        return ContainerInfo("main", "uid-a", ended=False)

    def close(self) -> None:
        self.closed = True

    def meter(self, period: float = 5.0) -> Meter:
        return Meter(
            read=self.read,
            owners=Owners(cast(Cgroups, self), cast(Cri, self)),
            holdings=lambda: self.holdings,
            period=period,
            on_overuse=self.overuses.append,
            close=self.close,
            clock=lambda: self.now,
            unix=lambda: self.now,
        )


def measured(meter: Meter) -> NodeMeasurement | None:
    """Return the newest measurement; mypy would take a property for a constant."""
    return meter.measured


def test_a_measurement_joins_driver_kernel_runtime_and_holdings() -> None:
    world = World()
    meter = world.meter()
    assert measured(meter) is None
    meter.measure()
    found = {REF: {"GPU-0": MeasuredUse(90, 5)}}
    assert measured(meter) == NodeMeasurement(world.cards, found)
    assert world.since == 95_000_000  # microseconds: since the measurement before
    assert world.requested == ["a", "b"]
    world.now += 15
    meter.measure()
    assert world.requested == ["a", "b", "b"]  # known containers are not requested again
    world.now += 15
    meter.measure()
    meter.measure()
    assert [each.ref for each in world.overuses] == [REF]


def test_an_old_measurement_is_not_shown() -> None:
    world = World()
    meter = world.meter()
    meter.measure()
    world.now += 15
    assert measured(meter) is not None
    world.now += 0.1
    assert measured(meter) is None
    meter.measure()
    world.holdings = None  # another agent works
    meter.measure()
    assert measured(meter) is None


def _messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.getMessage(), vars(each).get("reason", "")) for each in caplog.records]


def test_a_failed_measurement_is_absent_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    meter = world.meter()
    meter.measure()
    world.problem = "NVML: Driver Not Loaded"
    meter.measure()
    meter.measure()
    assert measured(meter) is None
    world.problem = ""
    world.now += 30
    meter.measure()
    meter.measure()
    assert world.overuses == []  # overuse before the failure does not count
    world.requested.clear()
    world.cards = {"GPU-0": CardUse(problems=("in MIG mode",))}
    meter.measure()
    meter.measure()
    assert measured(meter) == NodeMeasurement(
        world.cards, {REF: {"GPU-0": MeasuredUse(None, None)}}
    )
    assert world.requested == []
    world.cards = {"GPU-0": CardUse(0, 0, {7: 0}, {})}
    meter.measure()
    assert world.requested == ["a"]  # it was forgotten without a process
    assert _messages(caplog) == [
        ("use cannot be measured", "NVML: Driver Not Loaded"),
        ("use is measured again", ""),
        ("the driver does not report use", "in MIG mode"),
    ]


def test_an_agent_that_cannot_see_the_host_logs_that_instead_of_reporting_zeros(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    meter = World().meter()
    meter.measure()
    assert measured(meter) is None
    ((_, reason),) = _messages(caplog)
    assert reason.endswith("the agent needs hostPID")


def test_it_measures_until_it_is_stopped() -> None:
    world, stop = World(), threading.Event()
    meter = world.meter(period=0.001)
    world.holdings = NodeHoldings((), {}, CARDS, BLOCK)

    def measure_and_stop(uuids: Collection[str], since: int) -> Mapping[str, CardUse]:
        stop.set()
        return {}

    meter._read = measure_and_stop
    meter.run(stop)
    assert measured(meter) is not None
    assert world.closed
