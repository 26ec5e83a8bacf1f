"""Repeated measurements of use: what is requested, cached, reported and given up."""

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
from agent.usage import join
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


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks are enough, however soon."""
    monkeypatch.setattr(join, "REPORT_AFTER_SECONDS", 0)
    monkeypatch.setattr(join, "REPORT_AFTER_MEASUREMENTS", 2)


@dataclass
class World:
    """Driver, kernel, runtime and record, as a test wants them."""

    cards: dict[str, CardUse] = field(
        default_factory=lambda: {"GPU-0": CardUse(70, 9, {7: 90}, {7: 5, 8: 1})}
    )
    holdings: NodeHoldings | None = HOLDINGS
    away: str = ""
    now: float = 100.0
    since: int = 0
    asked: list[str] = field(default_factory=list)
    overuses: list[Overuse] = field(default_factory=list)
    closed: bool = False

    def read(self, uuids: Collection[str], since: int) -> Mapping[str, CardUse]:
        assert list(uuids) == ["GPU-0"]
        if self.away:
            raise Unavailable(self.away)
        self.since = since
        return self.cards

    def containers_of(self, pids: Iterable[int]) -> Mapping[int, ContainerCgroup]:
        cgroup, other = ContainerCgroup(ID, "uid-a", ()), ContainerCgroup("b" * 64, None, ())
        return {pid: cgroup if pid == 7 else other for pid in pids}

    def container(self, container_id: str, *, within: float) -> ContainerInfo | None:
        self.asked.append(container_id[:1])
        if container_id != ID:  # of nobody's making
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
    return meter.measured


def test_an_observation_joins_driver_kernel_runtime_and_snapshot() -> None:
    world = World()
    meter = world.meter()
    assert measured(meter) is None
    meter.measure()
    found = {REF: {"GPU-0": MeasuredUse(90, 5)}}
    assert measured(meter) == NodeMeasurement(world.cards, found)
    assert world.since == 95_000_000  # microseconds: since the look before
    assert world.asked == ["a", "b"]
    meter.measure()
    assert world.asked == ["a", "b", "b"]  # what the runtime has named, it is not asked again
    assert [each.ref for each in world.overuses] == [REF]
    meter.measure()
    assert len(world.overuses) == 1


def test_an_old_observation_is_not_shown() -> None:
    world = World()
    meter = world.meter()
    meter.measure()
    world.now += 15
    assert measured(meter) is not None
    world.now += 0.1
    assert measured(meter) is None
    meter.measure()
    world.holdings = None  # another agent serves
    meter.measure()
    assert measured(meter) is None


def _messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.getMessage(), vars(each).get("reason", "")) for each in caplog.records]


def test_what_cannot_be_measured_is_absent_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = World()
    meter = world.meter()
    meter.measure()
    world.away = "NVML: Driver Not Loaded"
    meter.measure()
    meter.measure()
    assert measured(meter) is None
    world.away = ""
    world.cards = {"GPU-0": CardUse(problems=("in MIG mode",))}
    meter.measure()
    meter.measure()
    assert measured(meter) == NodeMeasurement(
        world.cards, {REF: {"GPU-0": MeasuredUse(None, None)}}
    )
    assert world.asked == ["a", "b"]
    world.cards = {"GPU-0": CardUse(0, 0, {7: 0}, {})}
    meter.measure()
    assert world.asked == ["a", "b", "a"]  # it was gone, and forgotten
    assert _messages(caplog) == [
        ("use cannot be measured", "NVML: Driver Not Loaded"),
        ("the driver does not report use", "in MIG mode"),
        ("use is measured again", ""),
    ]
    assert world.overuses == []  # what was seen before the break does not count


def test_an_agent_that_cannot_see_the_host_logs_that_instead_of_reporting_zeros(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    meter = World().meter()
    meter.measure()
    assert measured(meter) is None
    ((_, reason),) = _messages(caplog)
    assert reason.endswith("the agent needs hostPID")


def test_it_observes_until_it_is_stopped() -> None:
    world, stop = World(), threading.Event()
    meter = world.meter(period=0.001)
    world.holdings = NodeHoldings((), {}, CARDS, BLOCK)

    def look_and_stop(uuids: Collection[str], since: int) -> Mapping[str, CardUse]:
        stop.set()
        return {}

    meter._read = look_and_stop
    meter.run(stop)
    assert measured(meter) is not None
    assert world.closed
