"""The watch over the cards: in its thread, over a scripted driver and over NVML's stand-in."""

import logging
import math
import queue
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from agent.cards.discovery import CardsStatus, CardWatch, Pace
from agent.cards.fault_store import FaultStore
from agent.cards.health import (
    CardFault,
    CardHealth,
    ClockReading,
    FaultKind,
    Probe,
    Rules,
    xid_fault,
)
from agent.cards.inventory import Discovery, UnservedCard
from agent.errors import DriverUnloaded, Unavailable
from agent.host.state_file import StateFile
from contract.cordon import Cordon
from contract.inventory import Card
from tests.agent.builders import device_table
from tests.agent.fakes import DEADLINE_S, eventually
from tests.agent.threads import CountedStop, running

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TWO = Discovery(device_table(2).inventory, "550.54.15")
LOST = CardFault(FaultKind.LOST, "NVML: GPU is lost")
RULES = Rules(quiet=300)
BUSY = Pace(step=0.005, probe=0.0, renew=60.0, retry=0.005, retry_most=0.02)
"""Probes in every round, and fails fast; the time that counts is the fake clock's."""


class Clock:
    at = 0.0

    def __call__(self) -> ClockReading:
        return ClockReading(self.at, NOON + timedelta(seconds=self.at))


class Driver:
    """A source and its sessions, whose results a test sets."""

    def __init__(self) -> None:
        self.found = TWO
        self.watching = True
        self.stale = False
        self.unwatched: dict[str, str] = {}
        self.probes: dict[str, Probe | CardFault] = {}
        self.events: queue.Queue[tuple[str, CardFault]] = queue.Queue()
        self.failing: dict[str, Unavailable] = {}
        self.opened = self.closed = self.waits = 0

    def _step(self, name: str) -> None:
        if name in self.failing:
            raise self.failing[name]

    def open(self) -> Self:
        self._step("open")
        self.opened += 1
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def discover(self) -> Discovery:
        self._step("discover")
        return self.found

    def watch(self, uuids: Collection[str], /) -> dict[str, str]:
        self._step("watch")
        return self.unwatched

    def wait(self, seconds: float, /) -> tuple[tuple[str, ...], CardFault] | None:
        self.waits += 1
        self._step("wait")
        try:
            uuid, fault = self.events.get(timeout=seconds)
        except queue.Empty:
            return None
        return (uuid,), fault

    def probe(self, uuid: str, /) -> Probe | CardFault:
        self._step("probe")
        return self.probes.get(uuid, Probe(0, ""))


class Scene:
    """The surroundings of a watch; as its listener it records all calls."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.driver = Clock(), Driver()
        self.file, self.driver_instance = StateFile(folder / "faults"), "boot-1"
        self.statuses: list[CardsStatus] = []
        self.changes: list[tuple[str, str]] = []
        self.events: list[tuple[str, str, bool]] = []

    def cards_changed(self, status: CardsStatus) -> None:
        self.statuses.append(status)

    def health_changed(self, card: Card, health: CardHealth) -> None:
        self.changes.append((card.uuid, health.reason))

    def event_seen(self, card: Card, fault: CardFault, *, counts: bool) -> None:
        self.events.append((card.uuid, fault.text, counts))

    def make(self, **parts: Any) -> CardWatch:
        given: dict[str, Any] = {"rules": RULES, "pace": BUSY} | parts
        return CardWatch(
            self.driver,
            listener=self,
            store=FaultStore(self.file, lambda: self.driver_instance),
            now=self.clock,
            jitter=lambda: 0.0,
            **given,
        )

    @contextmanager
    def watching(self, *, known: bool = True, **parts: Any) -> Iterator[CardWatch]:
        """Run a watch in its thread; unless *known* is false, wait until it knows its cards."""
        watch, stop = self.make(**parts), threading.Event()
        with running(lambda: watch.run(stop), stop.set):
            assert not known or watch.known.wait(DEADLINE_S)
            yield watch

    def pass_rounds(self) -> None:
        goal = self.driver.waits + 3
        eventually(lambda: self.driver.waits >= goal, "it makes rounds")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def watch(scene: Scene) -> Iterator[CardWatch]:
    with scene.watching() as started:
        yield started


def test_a_card_that_is_unhealthy_from_the_start_is_never_shown_healthy(scene: Scene) -> None:
    """What the driver reports at any time is not stored: the next agent may reach the card."""
    scene.driver.probes |= {"GPU-0": CardFault(FaultKind.MIG, "in MIG mode"), "GPU-1": LOST}
    with scene.watching() as watch:
        assert watch.withheld_cards() == {"GPU-0", "GPU-1"}
    (status,) = scene.statuses
    assert [each.healthy for each in status.health.values()] == [False, False]
    assert scene.file.load() == ""


def test_a_node_without_a_card_to_serve_is_discovered_again(scene: Scene) -> None:
    fault = UnservedCard(0, None, "NVML: GPU is lost")
    scene.driver.found = Discovery(device_table(0).inventory, "550.54.15", (fault,))
    with scene.watching(known=False) as watch:
        eventually(lambda: watch.status.problem != "", "it is reported")
        assert watch.status.problem == "no card can be served: card 0: NVML: GPU is lost"
        assert watch.status.discovery == scene.driver.found
        assert watch.inventory is None
        scene.driver.found = TWO
        assert watch.known.wait(DEADLINE_S)
        assert watch.inventory == TWO.inventory


def test_a_card_added_later_waits_for_a_restart(scene: Scene) -> None:
    scene.driver.found = replace(TWO, faults=(UnservedCard(2, None, "NVML: GPU is lost"),))
    with scene.watching(pace=replace(BUSY, renew=0.0)) as watch:
        scene.driver.found = Discovery(device_table(3).inventory, "560.28.03")
        eventually(lambda: watch.status.latecomers == ("GPU-2",), "it is reported")
        assert watch.inventory == TWO.inventory
        assert watch.unhealthy("GPU-2")
        assert watch.status.discovery == replace(TWO, driver="560.28.03")


def test_a_served_card_that_becomes_unhealthy_is_reported_once(scene: Scene) -> None:
    nameless, known = UnservedCard(0, None, "lost"), UnservedCard(1, "GPU-1", "lost")
    other, mig = UnservedCard(2, "GPU-2", "lost"), UnservedCard(9, "GPU-9", "MIG")
    with scene.watching(pace=replace(BUSY, renew=0.0)) as watch:
        scene.driver.probes |= {"GPU-0": LOST, "GPU-1": LOST}
        scene.driver.found = Discovery(
            device_table(0).inventory, faults=(nameless, known, other), skipped=(known, mig)
        )
        expected = Discovery(TWO.inventory, faults=(other,), skipped=(mig,))
        eventually(lambda: watch.status.discovery == expected, "it discovers again")


def test_memory_of_each_card_is_kept_back_from_any_source(scene: Scene) -> None:
    before, kept = TWO.inventory.cards[0].memory, 512 << 20
    with scene.watching(reserved_memory=kept) as watch:
        assert watch.inventory is not None
        amounts = [(each.memory, each.reserved) for each in watch.inventory.cards]
    assert amounts == [(before - kept, kept)] * 2


def test_cards_that_may_have_changed_are_discovered_in_a_new_session(
    watch: CardWatch, scene: Scene
) -> None:
    scene.driver.stale = True
    eventually(lambda: scene.driver.opened > 2, "it opens others")
    assert watch.inventory == TWO.inventory


def test_an_error_of_an_application_is_an_event_and_changes_no_health(
    watch: CardWatch, scene: Scene
) -> None:
    scene.driver.events.put(("GPU-0", xid_fault(31)))
    eventually(lambda: scene.events, "it is reported")
    assert scene.events == [("GPU-0", "Xid 31 (GPU memory page fault)", False)]
    scene.pass_rounds()
    assert not watch.unhealthy("GPU-0")
    assert (scene.changes, len(scene.statuses)) == ([], 1)


def test_a_card_cordoned_while_unhealthy_returns_only_when_it_is_neither(
    watch: CardWatch, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agent.cards.discovery")
    assert math.isnan(watch.offer_age("cordon"))
    scene.driver.events.put(("GPU-1", xid_fault(94)))
    eventually(lambda: watch.withheld_cards() == {"GPU-1"}, "it is unhealthy")
    watch.set_cordon(["gpu-0", "GPU-1", "GPU-9"])
    assert watch.withheld_cards() == {"GPU-0", "GPU-1"}
    assert (watch.unhealthy("GPU-0"), watch.withheld("GPU-0")) == ("", "cordoned")
    eventually(
        lambda: scene.statuses[-1].cordon == Cordon(watch.cordoned, ("GPU-9",)),
        "the gauges show it",
    )
    scene.clock.at += RULES.quiet
    eventually(lambda: watch.withheld("GPU-1") == "cordoned", "it has recovered")
    assert watch.withheld_cards() == {"GPU-0", "GPU-1"}
    eventually(lambda: watch.offer_age("health") == 0, "cards are offered because of it")
    assert watch.offer_age("cordon") == RULES.quiet
    named = {each.getMessage(): vars(each) for each in caplog.records}
    assert named["cordoned cards"]["cards"] == ["GPU-0", "GPU-1"]
    assert named["entries of gpu-cordoned name no card"]["entries"] == ["GPU-9"]
    watch.set_cordon(["GPU-1"])
    assert watch.withheld_cards() == {"GPU-1"}


def test_cards_without_events_are_logged_and_probed(scene: Scene) -> None:
    scene.driver.watching = False
    scene.driver.unwatched = {"GPU-0": "NVML: Not Supported"}
    with scene.watching() as watch:
        scene.driver.probes["GPU-0"] = LOST
        eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
        assert watch.status.unwatched == {"GPU-0": "NVML: Not Supported"}
    assert scene.driver.waits == 0


def test_a_new_session_searches_a_card_that_does_not_respond(scene: Scene) -> None:
    driver, clock = scene.driver, scene.clock
    with scene.watching() as watch:
        driver.probes["GPU-0"] = CardFault(FaultKind.MIG, "in MIG mode")
        clock.at = 70
        eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
        scene.pass_rounds()
        assert driver.opened == 1  # it responds: not needed
        driver.probes["GPU-0"] = LOST
        eventually(lambda: driver.opened == 2, "it opens another")
        clock.at = 129
        scene.pass_rounds()
        assert driver.opened == 2
        clock.at = 130
        eventually(lambda: driver.opened == 3, "it opens another")
    assert driver.closed == driver.opened


@pytest.fixture
def with_faults(scene: Scene) -> Scene:
    """A restart after Xid 79 of GPU-1; the driver reports no recovery actions."""
    scene.driver.probes |= {"GPU-0": Probe(0, None), "GPU-1": Probe(0, None)}
    with scene.watching() as watch:
        scene.clock.at = 1.0
        scene.driver.events.put(("GPU-1", xid_fault(79)))
        eventually(lambda: watch.unhealthy("GPU-1"), "it is unhealthy")
    scene.changes.clear()
    return scene


@pytest.mark.parametrize(
    ("instance", "rules"),
    [("boot-2", RULES), ("", RULES), ("boot-1", Rules(quiet=300, ignored_xids={79}))],
)
def test_a_fault_before_the_driver_was_loaded_or_of_a_kind_that_is_ignored_is_forgotten(
    with_faults: Scene, instance: str, rules: Rules
) -> None:
    with_faults.driver_instance = instance
    with with_faults.watching(rules=rules) as watch:
        assert not watch.unhealthy("GPU-1")
    assert (with_faults.file.load(), with_faults.changes) == ("", [])


def test_a_card_that_one_agent_did_not_find_is_still_unhealthy_for_the_next(
    with_faults: Scene,
) -> None:
    with_faults.driver.found = Discovery(device_table(1).inventory, "550.54.15")
    with with_faults.watching():
        pass
    with_faults.driver.found = TWO
    with with_faults.watching() as watch:
        assert watch.unhealthy("GPU-1").startswith("Xid 79 (GPU has fallen off the bus) at ")


def test_faults_that_cannot_be_read_are_logged_and_ignored(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.file.save("[]")
    with scene.watching() as watch:
        assert not watch.unhealthy("GPU-0")
    assert "unhealthy cards cannot be read" in caplog.messages
    assert scene.file.load() == ""


def test_a_folder_that_the_kubelet_has_emptied_is_written_again(with_faults: Scene) -> None:
    text = with_faults.file.load()
    with with_faults.watching():
        with_faults.file.save("")
        eventually(lambda: with_faults.file.load() == text, "it is there again")


@pytest.mark.parametrize("where", ["open", "discover", "watch"])
def test_no_card_is_healthy_without_a_working_session(
    where: str, watch: CardWatch, scene: Scene
) -> None:
    scene.driver.failing |= dict.fromkeys(("wait", where), Unavailable("NVML: Uninitialized"))
    eventually(lambda: watch.unhealthy("GPU-0") and watch.unhealthy("GPU-1"), "no card is")
    assert watch.status.health["GPU-0"].reason == "NVML: Uninitialized at 2026-11-21T12:00:00Z"
    assert watch.inventory == TWO.inventory
    scene.driver.failing.clear()
    eventually(lambda: watch.status.problem == "", "it works again")
    assert watch.unhealthy("GPU-0")
    scene.clock.at = 300
    eventually(lambda: not watch.withheld_cards(), "they recover")


def test_a_session_that_can_only_probe_is_logged_and_the_cards_stay(
    watch: CardWatch, scene: Scene
) -> None:
    scene.driver.failing["wait"] = Unavailable("NVML: Unknown Error")
    eventually(lambda: scene.driver.opened > 3, "it tries again")
    assert watch.status.problem == "NVML: Unknown Error"
    assert not watch.unhealthy("GPU-0")
    scene.driver.probes["GPU-0"] = LOST
    eventually(lambda: watch.unhealthy("GPU-0"), "it still probes")
    assert not watch.unhealthy("GPU-1")
    assert {status.problem for status in scene.statuses[1:]} == {"NVML: Unknown Error"}


def test_a_driver_that_was_unloaded_has_reset_every_card(watch: CardWatch, scene: Scene) -> None:
    driver, unloaded = scene.driver, DriverUnloaded("NVML: Driver Not Loaded")
    driver.probes |= dict.fromkeys(("GPU-0", "GPU-1"), Probe(0, None))
    driver.events.put(("GPU-0", xid_fault(119)))
    eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
    driver.failing |= dict.fromkeys(("wait", "open"), unloaded)
    eventually(lambda: watch.unhealthy("GPU-1"), "no card is")
    driver.failing.clear()
    eventually(lambda: watch.status.problem == "", "it works again")
    scene.clock.at = 1300
    eventually(lambda: not watch.unhealthy("GPU-0"), "it recovers")


def test_failures_are_tried_again_ever_more_slowly(scene: Scene) -> None:
    scene.driver.failing["open"] = Unavailable("NVML: Driver Not Loaded")
    stop = CountedStop(9)
    scene.make(pace=Pace()).run(stop)
    assert stop.waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(scene.statuses) == 1


def test_after_a_good_session_the_first_try_comes_soon(scene: Scene) -> None:
    class Flaky(Driver):
        def wait(self, seconds: float, /) -> tuple[tuple[str, ...], CardFault] | None:
            scene.clock.at += 61
            raise Unavailable("NVML: GPU is lost")

    scene.driver, stop = Flaky(), CountedStop(3)
    scene.make(pace=Pace()).run(stop)
    assert stop.waited == [1, 1, 1]
