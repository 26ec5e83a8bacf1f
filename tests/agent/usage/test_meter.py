"""Repeated measurements of use, and containers that use more than they hold."""

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from agent.cards.card_use import CardUse
from agent.errors import Unavailable
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings, are_whole, make_key
from agent.runtime.cgroups import Cgroups, ContainerCgroup
from agent.runtime.cri import ContainerInfo, Cri
from agent.usage.join import MeasuredUse, NodeMeasurement, Overuse, OveruseWatch, ProcessOwner, join
from agent.usage.meter import Meter, Owners
from contract.inventory import Amounts
from tests.agent.builders import BLOCK, cases, device_table, pod_id

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


MIB = 1 << 20
HALF = Amounts(50, 8)
TABLE = device_table(2, blocks=16)


def holder(name: str, cards: Mapping[str, Amounts], core_limit: int | None = None) -> Holding:
    ref = ContainerRef(pod_id(name, name), "main")
    return Holding(ref, make_key(name), cards, are_whole(cards), core_limit, name)


def holding_all(*holders: Holding) -> NodeHoldings:
    return NodeHoldings.of(holders, TABLE.inventory.cards, BLOCK)


A, B = holder("a", {"GPU-0": HALF}), holder("b", {"GPU-1": Amounts(100, 8)})
IN_A, IN_B = ProcessOwner("a", "main"), ProcessOwner("b", "main")
OWNERS = {1: IN_A, 2: IN_A, 3: IN_B, 4: ProcessOwner("a", "plain")}


@cases(
    "cards, of_a, of_b",
    {
        "all processes of the container, and no others": (
            {"GPU-0": CardUse(9, 9, {1: 20, 2: 30, 4: 5, 9: 5}, {1: 1, 2: 2, 4: 4, 9: 8})},
            {"GPU-0": MeasuredUse(50, 3)},
            {},
        ),
        "no more than the card": (
            {"GPU-0": CardUse(9, 9, {1: 80, 2: 80}, {1: 1})},
            {"GPU-0": MeasuredUse(100, 1)},
            {},
        ),
        "values that the driver lacks": (
            {"GPU-0": CardUse(9, 9, None, {1: 1}), "GPU-1": CardUse(9, 9, {3: 7}, None)},
            {"GPU-0": MeasuredUse(None, 1)},
            {"GPU-1": MeasuredUse(7, None)},
        ),
        "on a card that it does not hold": (
            {"GPU-0": CardUse(9, 9, {}, {}), "GPU-1": CardUse(9, 9, {1: 40}, {1: 4})},
            {"GPU-0": MeasuredUse(0, 0), "GPU-1": MeasuredUse(40, 4)},
            {"GPU-1": MeasuredUse(0, 0)},
        ),
    },
)
def test_use_is_that_of_the_holders(
    cards: dict[str, CardUse], of_a: dict[str, MeasuredUse], of_b: dict[str, MeasuredUse]
) -> None:
    unknown = holder("", {"GPU-0": HALF})  # its UID is not known yet
    assert join(cards, OWNERS, holding_all(A, B, unknown)) == {A.ref: of_a, B.ref: of_b}


# --- more than a share ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "used", "text"),
    [
        (A, {"GPU-0": MeasuredUse(60, 2560 * MIB)}, ""),
        (A, {"GPU-0": MeasuredUse(61, 0)}, "uses 61 cores of GPU-0 and holds 50"),
        (A, {"GPU-0": MeasuredUse(0, 3000 * MIB)}, "uses 3000 MiB of GPU-0 and holds 2048"),
        (
            A,
            {"GPU-0": MeasuredUse(0, 0), "GPU-1": MeasuredUse(30, 600 * MIB)},
            "uses 30 cores of GPU-1 and holds 0; uses 600 MiB of GPU-1 and holds 0",
        ),
        (holder("a", {"GPU-0": HALF}, core_limit=80), {"GPU-0": MeasuredUse(90, 0)}, ""),
        (holder("a", {"GPU-0": HALF}, core_limit=20), {"GPU-0": MeasuredUse(60, 0)}, ""),
    ],
)
def test_more_than_a_share_is_more_than_its_tolerance(
    of: Holding, used: dict[str, MeasuredUse], text: str
) -> None:
    watch = OveruseWatch()
    findings = [watch.find(at, holding_all(of), {of.ref: used}) for at in (0, 15, 30)]
    assert [[each.text for each in one] for one in findings] == [[], [], [text] if text else []]


def test_only_lasting_overuse_is_reported_and_once() -> None:
    watch, much = OveruseWatch(), {A.ref: {"GPU-0": MeasuredUse(90, 0)}}

    def has_finding(
        at: float, use: Mapping[ContainerRef, Mapping[str, MeasuredUse]] = much
    ) -> bool:
        return [each.ref for each in watch.find(at, holding_all(A), use)] == [A.ref]

    assert not any(has_finding(at) for at in (0, 29))
    assert not has_finding(30, {})  # no use: it begins again
    assert not any(has_finding(at) for at in (31, 60))
    seldom = OveruseWatch()  # too few measurements
    assert [seldom.find(at, holding_all(A), much) for at in (0, 60)] == [[], []]
    assert has_finding(61)
    assert not any(has_finding(at) for at in (70, 200))
    watch.find(201, holding_all(), {})  # the container has ended; one with its name starts again
    assert not has_finding(202)
    watch.interrupt()
    assert not any(has_finding(at) for at in (240, 260))
    assert has_finding(270)
