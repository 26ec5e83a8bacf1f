"""Changes of the cards are forwarded to Events, metrics and callbacks."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.app.card_updates import CardUpdates
from agent.cards.discovery import CardsStatus
from agent.cards.health import (
    CardFault,
    CardHealth,
    ClockReading,
    FaultKind,
    Rules,
    after_fault,
    xid_fault,
)
from agent.cards.inventory import Discovery, UnservedCard
from agent.observability.metrics import Metrics
from common.apiserver.events import EventSubject, Notice
from contract.cordon import Cordon, describe_unknown
from contract.inventory import Inventory
from tests.agent.builders import card, device_table
from tests.agent.fakes import NAMES

NOON = ClockReading(0.0, datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC))
TWO = Discovery(device_table(2).inventory, "550.54.15")
WELL = CardsStatus(TWO, {"GPU-0": CardHealth(), "GPU-1": CardHealth()})
UNHEALTHY = after_fault(CardHealth(), xid_fault(79), NOON, Rules())


class Reports:
    def __init__(self) -> None:
        self._metrics = Metrics()
        self.sent: list[Notice] = []
        self.changes: list[None] = []
        self.updates = CardUpdates(
            node="n1",
            names=NAMES,
            metrics=self._metrics,
            send_event=self.sent.append,
            on_change=lambda: self.changes.append(None),
        )

    def metric(self, name: str, **labels: str) -> Any:
        return self._metrics.registry.get_sample_value(f"gpu_turnstile_agent_{name}", labels)

    def texts(self) -> list[tuple[str, str]]:
        return [(each.reason, each.message) for each in self.sent]


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_a_card_that_becomes_unhealthy_is_reported_everywhere(reports: Reports) -> None:
    reports.updates.cards_changed(WELL)
    reports.updates.health_changed(card(1), UNHEALTHY)
    assert reports.metric("card_healthy", card="GPU-1", index="1", model="Test") == 0
    assert reports.metric("card_healthy", card="GPU-0", index="0", model="Test") == 1
    (notice,) = reports.sent
    assert (notice.reason, notice.warning) == ("GPUUnhealthy", True)
    assert notice.message == (
        "card 1 (GPU-1, Test): Xid 79 (GPU has fallen off the bus): no new container gets it, "
        "running ones stay"
    )
    assert notice.subject == EventSubject("Node", "", "n1", "n1")
    assert len(reports.changes) == 2


def test_a_cordoned_card_is_healthy_in_the_gauges_and_raises_no_event(reports: Reports) -> None:
    reports.updates.cards_changed(replace(WELL, cordon=Cordon(frozenset({"GPU-1"}))))
    labels = {"card": "GPU-1", "index": "1", "model": "Test"}
    assert reports.metric("card_healthy", **labels) == 1
    assert reports.metric("card_cordoned", **labels) == 1
    assert reports.sent == []
    reports.updates.health_changed(card(1), CardHealth())
    text = "card 1 (GPU-1, Test) is healthy again, and cordoned: no new container gets it"
    assert reports.texts() == [("GPUHealthy", text)]
    reports.updates.cards_changed(WELL)
    assert reports.metric("card_cordoned", **labels) == 0


def test_what_a_cordon_does_not_name_is_reported_once_until_it_changes(reports: Reports) -> None:
    for entries in (("A;B",), ("A;B",), (), ("A;B", "0")):
        cordon = Cordon(frozenset({"GPU-1"}), entries)
        reports.updates.cards_changed(replace(WELL, cordon=cordon))
    assert reports.texts() == [
        ("GPUCordonUnknown", describe_unknown(entries, NAMES))
        for entries in (("A;B",), ("A;B", "0"))
    ]


def test_the_same_fault_at_another_time_is_the_same_event(reports: Reports) -> None:
    later = replace(UNHEALTHY, since=datetime(2026, 11, 22, tzinfo=UTC))
    for health in (UNHEALTHY, CardHealth(), later):
        reports.updates.health_changed(card(0), health)
    assert reports.sent[0] == reports.sent[2]


def test_cards_are_counted_by_state(reports: Reports) -> None:
    lost, mig = UnservedCard(2, None, "NVML: GPU is lost"), UnservedCard(3, "GPU-3", "in MIG mode")
    found = replace(TWO, faults=(lost,), skipped=(mig,))
    status = replace(
        WELL,
        discovery=found,
        health={"GPU-0": CardHealth(), "GPU-1": UNHEALTHY},
        latecomers=("GPU-4", "GPU-5"),
        unwatched={"GPU-0": "NVML: Not Supported"},
    )
    reports.updates.cards_changed(status)
    counts = {"served": 2, "faulty": 1, "mig": 1, "late": 2}
    assert {state: reports.metric("cards", state=state) for state in counts} == counts
    assert reports.metric("cards_unwatched") == 1
    assert reports.metric("cards_problem", reason="") == 0
    assert reports.metric("card_healthy", card="GPU-1", index="1", model="Test") == 0
    texts = [
        ("GPULeftOut", "card 2 is not served: NVML: GPU is lost"),
        ("GPULeftOut", "card 3 (GPU-3) is not served: in MIG mode"),
        ("GPULeftOut", "card GPU-4 can be served once the agent is started again"),
        ("GPULeftOut", "card GPU-5 can be served once the agent is started again"),
    ]
    assert reports.texts() == texts
    reports.updates.cards_changed(replace(status, problem="NVML: Unknown Error"))
    assert reports.texts() == texts  # each is reported once
    assert reports.metric("cards_problem", reason="NVML: Unknown Error") == 1
    reports.updates.cards_changed(WELL)
    assert reports.metric("cards", state="late") == 0
    reports.updates.cards_changed(replace(WELL, discovery=replace(TWO, skipped=(mig,))))
    assert reports.texts() == [*texts, texts[1]]  # it was absent in between


def test_a_node_with_a_missing_driver_is_reported_once(reports: Reports) -> None:
    for _ in range(2):
        reports.updates.cards_changed(CardsStatus(problem="NVML: Driver Not Loaded"))
    assert reports.texts() == [("GPUsUnavailable", "NVML: Driver Not Loaded")]
    assert reports.metric("cards_problem", reason="NVML: Driver Not Loaded") == 1
    assert reports.metric("cards", state="served") == 0


def test_cards_without_a_first_probe_are_not_shown_healthy(reports: Reports) -> None:
    reports.updates.cards_changed(CardsStatus(TWO))
    assert reports.metric("card_healthy", card="GPU-0", index="0", model="Test") == 0


@pytest.mark.parametrize("cards_first", [True, False])
def test_cards_that_another_plugin_serves_too_are_reported_once_until_it_is_off(
    reports: Reports, cards_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    happen: list[Callable[[], None]] = [
        lambda: reports.updates.cards_changed(WELL),
        lambda: reports.updates.others_changed({"nvidia.com/gpu": 2}),
    ]
    for each in happen if cards_first else happen[::-1]:
        assert not reports.sent  # one half of it is no defect
        each()
    reports.updates.cards_changed(WELL)
    assert reports.texts() == [
        (
            "GPUsServedTwice",
            (
                "another program offers this node's cards as nvidia.com/gpu: 2, and its "
                "allocations are not counted here: turn off on this node NVIDIA's device plugin "
                "(with the GPU Operator by the label nvidia.com/gpu.deploy.device-plugin=false)"
            ),
        )
    ]
    assert reports.sent[0].subject == EventSubject("Node", "", "n1", "n1")
    assert [each.getMessage() for each in caplog.records] == ["cards are served twice"]
    assert reports.metric("cards_served_twice") == 2
    reports.updates.others_changed({})
    assert reports.metric("cards_served_twice") == 0
    reports.updates.others_changed({"nvidia.com/gpu": 1, "gpu.nvidia.com": 2})
    assert reports.sent[1].message == (
        "another program offers this node's cards as gpu.nvidia.com: 2, nvidia.com/gpu: 1, and its "
        "allocations are not counted here: turn off on this node NVIDIA's DRA driver (by its "
        "chart's resources.gpus.enabled=false) and NVIDIA's device plugin (with the GPU Operator "
        "by the label nvidia.com/gpu.deploy.device-plugin=false)"
    )


def test_a_node_whose_cards_are_all_in_mig_mode_belongs_to_another_plugin(reports: Reports) -> None:
    left_out = Discovery(Inventory(()), skipped=(UnservedCard(0, "GPU-0", "in MIG mode"),))
    reports.updates.cards_changed(CardsStatus(left_out))
    reports.updates.others_changed({"nvidia.com/gpu": 7})
    assert reports.metric("cards_served_twice") == 0
    assert [each.reason for each in reports.sent] == ["GPULeftOut"]


@pytest.mark.parametrize(
    ("fault", "counts", "labels"),
    [
        (xid_fault(79), True, "xid 79 card"),
        (xid_fault(31), False, "xid 31 application"),
        (CardFault(FaultKind.ECC, "double-bit ECC error"), True, "ecc  card"),
    ],
)
def test_events_of_the_driver_are_counted_by_fault(
    reports: Reports, fault: CardFault, counts: bool, labels: str
) -> None:
    for _ in range(2):
        reports.updates.event_seen(card(0), fault, counts=counts)
    named = dict(zip(("kind", "xid", "fault"), labels.split(" "), strict=True))
    assert reports.metric("card_events_total", card="GPU-0", **named) == 2
    assert not reports.sent
