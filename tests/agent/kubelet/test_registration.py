"""The registrar, against the simulated kubelet in a real directory with real sockets."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from agent.kubelet.device_list import HealthFeed
from agent.kubelet.kubelet_instance import DirectoryWatch
from agent.kubelet.registration import Registrar, RegistrationSeconds
from agent.kubelet.server import DevicePluginService
from common.known_resources import SHOWN_LATE
from contract.resource import Resource
from simulator.kubelet.errors import TurnedAway
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import TurnsAway, client_of, registered, responds
from tests.agent.fakes import DEADLINE_S, NAMES, FakeCalls, eventually, make_table
from tests.agent.threads import running

BOTH = [NAMES.core, NAMES.memory]
PATIENT = RegistrationSeconds(response=DEADLINE_S, stream=DEADLINE_S / 4)
"""A loaded machine does not exceed it.

A broken stream may drop the next registration before it has a stream (K18): then there is another.
"""


class Site:
    """A kubelet, and a registrar beside it with the gaps that it reports, one a registration."""

    def __init__(
        self,
        kubelet: Kubelet,
        log: pytest.LogCaptureFixture,
        stack: ExitStack,
        seconds: RegistrationSeconds,
    ) -> None:
        self.kubelet = kubelet
        self.gaps: list[float] = []
        self.when_served: Callable[[], object] = lambda: None
        """Happens once, while the first socket is being made."""
        self.registrar = Registrar(
            plugin_dir=kubelet.settings.plugin_dir,
            kubelet_dir=kubelet.settings.plugin_dir,
            services={name: partial(self._service, each) for name, each in NAMES.resources.items()},
            on_gap=self.gaps.append,
            seconds=seconds,
        )
        self.lists_follow = True
        """Whether streams send new lists."""
        self.compares = threading.Event()
        """Set when the registrar compares the lists that were sent with the cards' health."""
        self.feed = HealthFeed(self._unhealthy)
        self.folder = kubelet.settings.plugin_dir
        self.at = kubelet.settings.misbehavior.at
        """The kubelet's faults, by moment."""
        self._log = log
        self._stack = stack

    def begin(self) -> None:
        self._stack.enter_context(running(self.registrar.run, self.registrar.stop))

    def _service(self, resource: Resource) -> DevicePluginService:
        happens, self.when_served = self.when_served, lambda: None
        happens()
        return DevicePluginService(
            resource=resource, table=make_table(1), calls=FakeCalls(), health_feed=self.feed
        )

    def _unhealthy(self) -> frozenset[str]:
        if threading.current_thread().name.startswith("v"):  # a stream's
            return frozenset() if self.lists_follow else frozenset({"GPU-0"})
        self.compares.set()
        return frozenset()

    def wait(self, times: int = 1) -> None:
        """Wait until it has registered so often, and both sockets respond."""
        eventually(
            lambda: self.registrar.registered and len(self.gaps) >= times, f"{times} registrations"
        )
        eventually(lambda: all(responds(self.kubelet, each) for each in BOTH), "both respond")

    @property
    def resources(self) -> list[str]:
        """The resources registered so far, sorted: those of one registration come together."""
        return sorted(registered(self.kubelet))

    def failures(self) -> list[str]:
        return [
            vars(each)["reason"]
            for each in self._log.records
            if each.getMessage() == "registration failed"
        ]


@pytest.fixture
def seconds() -> RegistrationSeconds:
    return PATIENT


@pytest.fixture
def site(
    kubelet: Kubelet, caplog: pytest.LogCaptureFixture, seconds: RegistrationSeconds
) -> Iterator[Site]:
    with ExitStack() as stack:
        kubelet.start()
        yield Site(kubelet, caplog, stack, seconds)


@pytest.mark.parametrize("stem", ["vcore", "vmemory"])
def test_a_deleted_socket_of_the_agent_is_made_again_and_registered(site: Site, stem: str) -> None:
    site.begin()
    site.wait(1)
    (site.folder / "kubelet_internal_checkpoint").write_text("{}")
    (site.folder / "other.sock").touch()  # which changes nothing
    next(each for each in site.registrar.sockets if each.name.startswith(stem)).unlink()
    site.wait(2)
    assert len(site.resources) >= len(BOTH * 2)


def test_a_refused_registration_is_retried_and_its_delay_logged(
    site: Site,
) -> None:
    refusal = TurnedAway("the kubelet does not like this")
    site.at["Register"] = TurnsAway(refusal, times=2)
    site.begin()
    site.wait()
    # Both are sent at once: the second refusal may meet the next attempt, beside an acceptance.
    assert {*site.resources} == {*BOTH}
    assert set(site.failures()) == {"UNKNOWN: the kubelet does not like this"}
    assert site.gaps[0] >= 0.005  # the pause after the refusal


@pytest.mark.parametrize("seconds", [RegistrationSeconds(shortest_pause=3600, longest_pause=3600)])
def test_the_agent_registers_with_a_new_kubelet_without_the_pause_after_the_old_ones_refusals(
    site: Site,
) -> None:
    """The new kubelet rejects the pods that it admits before the registration."""
    site.kubelet.kill()
    site.begin()
    eventually(site.failures, "it tries")
    site.kubelet.start()
    site.wait()


def test_a_stream_that_the_kubelet_cuts_is_registered_again_at_once(site: Site) -> None:
    """K18: it drops whoever is registered when an earlier registration's stream breaks."""
    site.begin()
    site.wait(1)
    client_of(site.kubelet, NAMES.memory).close()
    site.wait(2)
    assert len(site.resources) >= len(BOTH * 2)


@pytest.mark.parametrize("seconds", [RegistrationSeconds(response=DEADLINE_S, stream=0.5)])
def test_the_agent_registers_again_with_a_kubelet_that_does_not_call_list_and_watch(
    site: Site,
) -> None:
    """It was disconnected before its stream, so no stream ends."""
    site.at["ListAndWatch"] = TurnsAway(TurnedAway("cut off"), times=1)
    site.begin()
    site.wait(1)
    assert len(site.resources) >= len(BOTH * 2)  # more if the machine is loaded
    assert set(site.failures()) == {"the kubelet does not call ListAndWatch"}


# --- a kubelet that changes during a registration -------------------------------------


def _clear(folder: Path) -> None:
    for each in folder.glob("v*.sock"):
        each.unlink()


def _replace(folder: Path) -> None:
    """Change its time only: the file of a new kubelet may have the inode of the old one."""
    (folder / "kubelet.sock").chmod(0o777)


@pytest.mark.parametrize(
    ("meanwhile", "hangs", "reasons"),
    [
        # A kubelet that starts clears its directory, and would dial deleted sockets for 10 s (K11).
        pytest.param(_clear, DEADLINE_S, ["the kubelet has removed our sockets"], id="cleared"),
        pytest.param(_replace, DEADLINE_S, ["the kubelet was replaced"], id="replaced"),
        pytest.param(lambda _folder: None, 0.2, [], id="slow"),
    ],
)
def test_a_registration_is_abandoned_if_its_kubelet_has_changed(
    site: Site,
    meanwhile: Callable[[Path], None],
    hangs: float,
    reasons: list[str],
) -> None:
    released = threading.Event()

    def hang(_resource: str) -> None:
        del site.at["Register"]
        meanwhile(site.folder)
        released.wait(hangs)
        if hangs == DEADLINE_S:
            raise TurnedAway("too late")

    site.at["Register"] = hang
    site.begin()
    site.wait()
    released.set()
    assert site.failures() == reasons
    assert set(site.resources) == set(BOTH)
    assert len(site.gaps) == 1


def test_the_agent_registers_once_with_a_kubelet_that_starts_while_sockets_are_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second registration would cut off calls that the kubelet already makes."""
    waits = []
    wait = DirectoryWatch.wait

    def count(watch: DirectoryWatch, *seconds: float) -> None:
        waits.append(seconds)
        wait(watch, *seconds)

    monkeypatch.setattr(DirectoryWatch, "wait", count)
    site.when_served = lambda: _replace(site.folder)
    site.begin()
    site.wait()
    before = len(waits)
    (site.folder / "other.sock").touch()  # makes it check
    eventually(lambda: len(waits) > before + 1, "it has checked")
    assert site.resources == BOTH


def test_the_agent_waits_for_the_next_kubelet_if_one_ends_while_sockets_are_made(
    site: Site,
) -> None:
    ended = threading.Event()

    def end() -> None:
        site.kubelet.stop()
        ended.set()

    site.when_served = end
    site.begin()
    assert ended.wait(DEADLINE_S)
    assert not site.registrar.registered
    site.kubelet.start()
    site.wait()


# --- a kubelet that knows one resource only (K11) ------------------------------------------------


def _healthy(site: Site) -> dict[str, int]:
    return site.kubelet.capacity()[1]


def test_devices_are_unhealthy_until_the_kubelet_knows_all_resources(site: Site) -> None:
    known = threading.Event()
    site.at["devices"] = lambda name: name != NAMES.memory or known.wait(DEADLINE_S)
    site.begin()
    eventually(lambda: NAMES.core in site.kubelet.capacity()[0], "it knows the cores")
    assert _healthy(site) == {NAMES.core: 0}
    known.set()
    eventually(lambda: _healthy(site) == {NAMES.core: 100, NAMES.memory: 32}, "both are healthy")


def test_nothing_is_registered_before_the_kubelet_has_the_lists_of_healthy_devices(
    site: Site,
) -> None:
    """It rejects a pod that is admitted earlier: "no healthy devices present"."""
    site.lists_follow = False
    site.begin()
    assert site.compares.wait(DEADLINE_S)
    assert len(site.kubelet.capacity()[0]) == 2
    assert not site.registrar.registered
    site.lists_follow = True
    site.feed.wake()
    site.wait(1)
    eventually(lambda: _healthy(site) == {NAMES.core: 100, NAMES.memory: 32}, "both are healthy")


def test_a_kubelet_whose_checkpoint_has_all_resources_gets_each_list_once(site: Site) -> None:
    def lists() -> list[tuple[str, int | None]]:
        return [
            (each.resource, each.available)
            for each in site.kubelet.trace.events
            if each.event == "devices"
        ]

    site.begin()
    site.wait(1)
    eventually(lambda: all(_healthy(site).values()), "both are healthy")
    before = len(lists())
    site.kubelet.restart()
    site.wait(2)
    eventually(lambda: all(_healthy(site).values()), "both are healthy")
    assert sorted(lists()[before:]) == [(NAMES.core, 100), (NAMES.memory, 32)]


def test_devices_are_shown_after_a_while_if_the_kubelet_never_knows_all(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("common.known_resources.HIDDEN_SECONDS", 0.1)
    ended = threading.Event()
    site.at["devices"] = lambda name: name != NAMES.memory or ended.wait(DEADLINE_S)
    site.begin()
    eventually(lambda: _healthy(site) == {NAMES.core: 100}, "the cores are healthy")
    ended.set()
    assert SHOWN_LATE in {each.getMessage() for each in caplog.records}
