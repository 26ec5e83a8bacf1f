"""The watch over the cards: in its thread, over a scripted driver and over NVML's stand-in."""

import queue
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self

import pytest

from agent.cards.discovery import CardsStatus, CardWatch, Pace
from agent.cards.health import CardHealth, Fault, FaultKind, Moment, Probe, Rules, xid_fault
from agent.cards.inventory import CardFault, Discovery
from agent.cards.kept_faults import KeptFaults
from agent.cards.source import Source
from agent.errors import DriverUnloaded, Unavailable
from agent.host.state_file import StateFile
from contract.cordon import REASON as CORDONED
from contract.inventory import Card
from tests.agent.builders import device_table
from tests.agent.fakes import eventually
from tests.agent.threads import running

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TWO = Discovery(device_table(2).inventory, "550.54.15")
LOST = Fault(FaultKind.LOST, "NVML: GPU is lost")
RULES = Rules(quiet=300)
BUSY = Pace(step=0.005, probe=0.0, renew=60.0, retry=0.005, retry_most=0.02)
"""Probes in every round, and fails fast; the time that counts is the fake clock's."""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> Moment:
        return Moment(self.at, NOON + timedelta(seconds=self.at))


class Driver:
    """A source and its sessions, with what they say."""

    def __init__(self, found: Discovery = TWO) -> None:
        self.found = found
        self.watching = True
        self.unwatched: dict[str, str] = {}
        self.answers: dict[str, Probe | Fault] = {}
        self.events: queue.Queue[tuple[str, Fault]] = queue.Queue()
        self.failing: dict[str, Unavailable] = {}
        self.opened = 0
        self.closed = 0
        self.waits = 0

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

    def wait(self, seconds: float, /) -> tuple[str, Fault] | None:
        self.waits += 1
        self._step("wait")
        try:
            return self.events.get(timeout=seconds)
        except queue.Empty:
            return None

    def probe(self, uuid: str, /) -> Probe | Fault:
        self._step("probe")
        return self.answers.get(uuid, Probe(0, ""))


class Diary:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.statuses: list[CardsStatus] = []
        self.turns: list[tuple[str, str]] = []
        self.events: list[tuple[str, str, bool]] = []

    def cards_changed(self, status: CardsStatus) -> None:
        self.statuses.append(status)

    def card_turned(self, card: Card, health: CardHealth) -> None:
        self.turns.append((card.uuid, health.reason))

    def event_seen(self, card: Card, fault: Fault, *, counts: bool) -> None:
        self.events.append((card.uuid, fault.text, counts))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def diary() -> Diary:
    return Diary()


class Disk(StateFile):
    """What outlives an agent: one text, and the life of the driver."""

    def __init__(self) -> None:
        self.text = ""
        self.life = "boot-1"

    def load(self) -> str:
        return self.text

    def save(self, text: str) -> None:
        self.text = text


def make(
    source: Source,
    clock: Clock,
    diary: Diary,
    pace: Pace = BUSY,
    *,
    disk: Disk | None = None,
    rules: Rules = RULES,
) -> CardWatch:
    kept = disk or Disk()
    return CardWatch(
        source,
        rules=rules,
        observer=diary,
        kept=KeptFaults(kept, lambda: kept.life),
        pace=pace,
        now=clock,
        jitter=lambda: 0.0,
    )


@contextmanager
def watching(watch: CardWatch) -> Iterator[CardWatch]:
    """The watch in its thread, stopped afterwards."""
    stop = threading.Event()
    with running(lambda: watch.run(stop), stop.set, within=10):
        yield watch


@pytest.fixture
def watch(driver: Driver, clock: Clock, diary: Diary) -> Iterator[CardWatch]:
    """A watch that knows its two cards."""
    with watching(make(driver, clock, diary)) as started:
        assert started.known.wait(20)
        yield started


def rounds(driver: Driver, more: int = 3) -> None:
    """Let the watch go round a few times."""
    goal = driver.waits + more
    eventually(lambda: driver.waits >= goal, "it goes round")


# --- finding ------------------------------------------------------------------------------


def test_a_card_that_is_ill_from_the_start_is_never_shown_healthy(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.answers["GPU-1"] = LOST
    with watching(make(driver, clock, diary)) as watch:
        assert watch.known.wait(20)
        assert watch.unhealthy("GPU-1")
    assert [list(status.health) for status in diary.statuses] == [["GPU-0", "GPU-1"]]
    assert not diary.statuses[0].health["GPU-1"].healthy


def test_a_node_without_a_card_to_serve_is_looked_at_again(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    fault = CardFault(0, None, "NVML: GPU is lost")
    driver.found = Discovery(device_table(0).inventory, "550.54.15", (fault,))
    with watching(make(driver, clock, diary)) as watch:
        eventually(lambda: watch.status.problem != "", "it is told")
        assert watch.status.problem == "no card can be served: card 0: NVML: GPU is lost"
        assert watch.status.discovery == driver.found
        assert watch.inventory is None
        driver.found = TWO
        assert watch.known.wait(20)
        assert watch.inventory == TWO.inventory


def test_a_card_that_comes_later_waits_for_a_restart(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.found = replace(TWO, faults=(CardFault(2, None, "NVML: GPU is lost"),))
    with watching(make(driver, clock, diary, replace(BUSY, renew=0.0))) as watch:
        assert watch.known.wait(20)
        driver.found = Discovery(device_table(3).inventory, "560.28.03")
        eventually(lambda: watch.status.latecomers == ("GPU-2",), "it is told")
        assert watch.inventory == TWO.inventory
        assert watch.unhealthy("GPU-2")
        assert watch.status.discovery is not None
        assert watch.status.discovery.driver == "560.28.03"
        assert watch.status.discovery.faults == ()


def test_a_card_of_ours_that_falls_ill_is_not_told_of_twice(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    mute, known = CardFault(0, None, "lost"), CardFault(1, "GPU-1", "lost")
    other = CardFault(2, "GPU-2", "lost")
    with watching(make(driver, clock, diary, replace(BUSY, renew=0.0))) as watch:
        assert watch.known.wait(20)
        driver.answers |= {"GPU-0": LOST, "GPU-1": LOST}
        driver.found = replace(
            Discovery(device_table(0).inventory),
            faults=(mute, known, other),
            skipped=(known, CardFault(9, "GPU-9", "MIG")),
        )
        eventually(
            lambda: watch.status.discovery and watch.status.discovery.faults, "it looks again"
        )
        assert watch.status.discovery is not None
        assert watch.status.discovery.faults == (other,)
        assert [each.uuid for each in watch.status.discovery.skipped] == ["GPU-9"]
        assert watch.inventory == TWO.inventory


# --- health -------------------------------------------------------------------------------


def test_an_error_of_an_application_is_told_and_changes_nothing(
    watch: CardWatch, driver: Driver, diary: Diary
) -> None:
    driver.events.put(("GPU-0", xid_fault(31)))
    eventually(lambda: diary.events, "it is told")
    assert diary.events == [("GPU-0", "Xid 31 (GPU memory page fault)", False)]
    rounds(driver)
    assert not watch.unhealthy("GPU-0")
    assert (diary.turns, len(diary.statuses)) == ([], 1)


def test_a_cordoned_card_stands_beside_ill_ones_and_comes_back_only_when_it_is_neither(
    watch: CardWatch, driver: Driver, clock: Clock
) -> None:
    driver.events.put(("GPU-1", xid_fault(94)))
    eventually(lambda: watch.unhealthy_cards() == {"GPU-1"}, "it is ill")
    watch.cordon(frozenset({"GPU-0", "GPU-1", "GPU-9"}))
    assert watch.unhealthy_cards() == {"GPU-0", "GPU-1"}
    clock.at += RULES.quiet
    eventually(lambda: watch.unhealthy("GPU-1") == CORDONED, "it is ill no more")
    assert watch.unhealthy_cards() == {"GPU-0", "GPU-1"}
    watch.cordon(frozenset({"GPU-1"}))
    assert watch.unhealthy_cards() == {"GPU-1"}


def test_cards_without_events_are_told_and_probed(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.watching = False
    driver.unwatched = {"GPU-0": "NVML: Not Supported"}
    with watching(make(driver, clock, diary)) as watch:
        assert watch.known.wait(20)
        driver.answers["GPU-0"] = LOST
        eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
        assert watch.status.unwatched == {"GPU-0": "NVML: Not Supported"}
    assert driver.waits == 0


def test_a_new_session_looks_for_a_card_that_does_not_answer(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    with watching(make(driver, clock, diary)) as watch:
        assert watch.known.wait(20)
        driver.answers["GPU-0"] = Fault(FaultKind.MIG, "in MIG mode")
        clock.at = 70
        eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
        rounds(driver)
        assert driver.opened == 1  # it answers: no need
        driver.answers["GPU-0"] = LOST
        eventually(lambda: driver.opened == 2, "it opens another")
        clock.at = 129
        rounds(driver)
        assert driver.opened == 2
        clock.at = 130
        eventually(lambda: driver.opened == 3, "it opens another")
        clock.at = 200
        driver.answers.clear()
        rounds(driver)
        opened = driver.opened
        clock.at = 300
        rounds(driver)
        assert driver.opened == opened  # all answer: no need
    assert driver.closed == driver.opened


# --- the agent starts again -----------------------------------------------------------------


@pytest.fixture
def disk(driver: Driver, clock: Clock, diary: Diary) -> Disk:
    """What an agent leaves whose GPU-1 had Xid 79; its driver cannot say what it asks for."""
    driver.answers |= {"GPU-0": Probe(0, None), "GPU-1": Probe(0, None)}
    disk = Disk()
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        clock.at = 1.0
        driver.events.put(("GPU-1", xid_fault(79)))
        eventually(lambda: watch.unhealthy("GPU-1"), "it is unhealthy")
    diary.turns.clear()
    return disk


REASON = "Xid 79 (GPU has fallen off the bus) at 12:00:01"


@pytest.mark.parametrize("life", ["boot-2", "another-1", ""])
def test_a_driver_that_was_loaded_since_has_set_every_card_up(
    life: str, disk: Disk, driver: Driver, clock: Clock, diary: Diary
) -> None:
    disk.life = life
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        assert not watch.unhealthy("GPU-1")
    assert (disk.text, diary.turns) == ("", [])


def test_a_fault_that_is_ignored_now_is_forgotten(
    disk: Disk, driver: Driver, clock: Clock, diary: Diary
) -> None:
    rules = Rules(quiet=300, ignored_xids={79})
    with watching(make(driver, clock, diary, disk=disk, rules=rules)) as watch:
        assert watch.known.wait(20)
        assert not watch.unhealthy("GPU-1")
    assert disk.text == ""


def test_a_card_that_an_agent_did_not_find_is_still_ill_for_the_next_one(
    disk: Disk, driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.found = Discovery(device_table(1).inventory, "550.54.15")
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
    driver.found = TWO
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        assert watch.unhealthy("GPU-1") == REASON


def test_what_cannot_be_read_is_logged_and_means_nothing(
    driver: Driver, clock: Clock, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    disk.text = "[]"
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        assert not watch.unhealthy("GPU-0")
    assert "ill cards cannot be read" in caplog.messages
    assert disk.text == ""


def test_a_folder_that_the_kubelet_has_emptied_is_written_again(
    disk: Disk, driver: Driver, clock: Clock, diary: Diary
) -> None:
    text = disk.text
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        disk.text = ""
        eventually(lambda: disk.text == text, "it is there again")


def test_what_the_driver_says_at_any_time_is_not_kept(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    """A card that an agent cannot reach may be sound for the next one."""
    driver.answers |= {"GPU-0": LOST, "GPU-1": Fault(FaultKind.MIG, "in MIG mode")}
    disk = Disk()
    with watching(make(driver, clock, diary, disk=disk)) as watch:
        assert watch.known.wait(20)
        assert watch.unhealthy("GPU-0")
    assert disk.text == ""


# --- NVML fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["open", "discover", "watch"])
def test_where_no_session_answers_no_card_is_healthy(
    where: str, watch: CardWatch, driver: Driver, clock: Clock
) -> None:
    driver.failing |= {"wait": Unavailable("NVML: Uninitialized")}
    driver.failing |= {where: Unavailable("NVML: Uninitialized")}
    eventually(lambda: watch.unhealthy("GPU-0"), "no card is")
    eventually(lambda: watch.unhealthy("GPU-1"), "no card is")
    assert watch.status.health["GPU-0"].reason == "NVML: Uninitialized at 12:00:00"
    assert watch.inventory == TWO.inventory
    driver.failing.clear()
    eventually(lambda: watch.status.problem == "", "it works again")
    assert watch.unhealthy("GPU-0")
    clock.at = 300
    eventually(
        lambda: not watch.unhealthy("GPU-0") and not watch.unhealthy("GPU-1"), "they are back"
    )


def test_a_session_that_can_only_probe_is_told_and_the_cards_stay(
    watch: CardWatch, driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.failing["wait"] = Unavailable("NVML: Unknown Error")
    eventually(lambda: driver.opened > 3, "it tries again")
    assert watch.status.problem == "NVML: Unknown Error"
    assert not watch.unhealthy("GPU-0")
    driver.answers["GPU-0"] = LOST
    eventually(lambda: watch.unhealthy("GPU-0"), "it still probes")
    assert not watch.unhealthy("GPU-1")
    assert [status.problem for status in diary.statuses[1:]].count("NVML: Unknown Error") == len(
        diary.statuses[1:]
    )


def test_a_driver_that_was_unloaded_sets_cards_up_anew(
    watch: CardWatch, driver: Driver, clock: Clock
) -> None:
    old = Probe(0, None)
    driver.answers |= {"GPU-0": old, "GPU-1": old}
    driver.events.put(("GPU-0", xid_fault(119)))
    eventually(lambda: watch.unhealthy("GPU-0"), "it is unhealthy")
    clock.at = 1000
    rounds(driver)
    assert watch.unhealthy("GPU-0")
    driver.failing |= {each: DriverUnloaded("NVML: Driver Not Loaded") for each in ("wait", "open")}
    eventually(lambda: watch.unhealthy("GPU-1"), "no card is")
    driver.failing.clear()
    eventually(lambda: watch.status.problem == "", "it works again")
    clock.at = 1300
    eventually(lambda: not watch.unhealthy("GPU-0"), "it is back")


class CountedStop(threading.Event):
    """Is set after so many waits, and does not wait."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self._left:
            self.set()
        return self.is_set()


def test_failures_are_tried_again_ever_more_slowly(
    driver: Driver, clock: Clock, diary: Diary
) -> None:
    driver.failing["open"] = Unavailable("NVML: Driver Not Loaded")
    stop = CountedStop(9)
    make(driver, clock, diary, Pace()).run(stop)
    assert stop.waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(diary.statuses) == 1


def test_after_a_good_session_the_first_try_comes_soon(clock: Clock, diary: Diary) -> None:
    class Flaky(Driver):
        def wait(self, seconds: float, /) -> tuple[str, Fault] | None:
            clock.at += 61
            raise Unavailable("NVML: GPU is lost")

    stop = CountedStop(3)
    make(Flaky(), clock, diary, Pace()).run(stop)
    assert stop.waited == [1, 1, 1]
