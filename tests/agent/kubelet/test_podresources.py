"""The client of PodResources, against the simulated kubelet's on a real unix socket."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from agent.allocator.interfaces import ListedContainer, ListedPod
from agent.errors import Unavailable
from agent.kubelet.podresources import PodResources
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import TurnedAway
from simulator.kubelet.numa import NO_NODE, DeviceAllocation
from simulator.kubelet.podresources import PodResourcesServer
from simulator.kubelet.pods import Pod, parse_pod
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.sockets import Misbehavior
from tests.agent.a_kubelet import TurnsAway
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import DEADLINE_S, NAMES, RESOURCES, FakeClock, eventually

_LIMITED = grpc.StatusCode.RESOURCE_EXHAUSTED


class Shown:
    """The kubelet's PodResources, not started yet, and what it shows: pod, container, resource."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "pr.sock"
        self.pods: dict[str, dict[str, dict[str, list[str]]]] = {}
        misbehavior = Misbehavior()
        self.at = misbehavior.at
        self.server = PodResourcesServer(self.socket, self._list, misbehavior=misbehavior)

    def _list(self) -> Iterator[tuple[Pod, PodHoldings]]:
        for name, containers in self.pods.items():
            metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
            spec = {"containers": [{"name": each} for each in containers]}
            yield (
                parse_pod({"metadata": metadata, "spec": spec}),
                {
                    container: {
                        resource: DeviceAllocation(
                            tuple(ids), PluginResponse(), {NO_NODE: tuple(ids)}
                        )
                        for resource, ids in held.items()
                    }
                    for container, held in containers.items()
                },
            )

    def turn_away(self, times: int, code: grpc.StatusCode = _LIMITED) -> TurnsAway:
        """Refuse so many calls for the rate limit."""
        self.at["List"] = turns_away = TurnsAway(TurnedAway("turned away", code), times)
        return turns_away


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Shown]:
    made = Shown(folder)
    yield made
    made.server.stop()


@pytest.fixture
def record(kubelet: Shown) -> Iterator[PodResources]:
    client = PodResources(kubelet.socket, resources=RESOURCES)
    yield client
    client.close()


def test_entries_of_one_id_each_are_added_up(kubelet: Shown, record: PodResources) -> None:
    """K16; and resources of other plugins are passed over."""
    cores = ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
    one = {NAMES.core: cores, NAMES.memory: ["GPU-0::7"], "example.com/nic": ["eth0"]}
    kubelet.pods = {"a": {"one": one, "two": {}}, "b": {}}
    kubelet.server.start()
    held = {CORE: frozenset(cores), MEMORY: frozenset({"GPU-0::7"})}
    assert record.list(within=DEADLINE_S) == (
        ListedPod("default", "a", (ListedContainer("one", held), ListedContainer("two", {}))),
        ListedPod("default", "b", ()),
    )


def test_a_response_beyond_grpcs_default_size_is_read(kubelet: Shown, record: PodResources) -> None:
    long = "GPU-" + "0" * 50
    kubelet.pods = {"a": {"one": {NAMES.core: [f"{long}::{n}" for n in range(50_000)]}}}
    kubelet.server.start()
    (pod,) = record.list(within=DEADLINE_S)
    assert len(pod.containers[0].held[CORE]) == 50_000


def test_a_rate_limited_call_is_retried(kubelet: Shown, record: PodResources) -> None:
    kubelet.server.start()
    turns_away = kubelet.turn_away(3)
    assert record.list(within=DEADLINE_S) == ()
    assert turns_away.asked == 4


def test_a_rate_limit_that_lasts_ends_at_the_deadline(kubelet: Shown, record: PodResources) -> None:
    kubelet.server.start()
    record.list(within=DEADLINE_S)
    kubelet.turn_away(1_000_000)
    with pytest.raises(Unavailable) as error:
        record.list(within=0.3)
    # Which of the two depends on whether the deadline falls into a call or a pause.
    assert str(error.value) in {
        "PodResources: rate limited until the deadline",
        "PodResources: DEADLINE_EXCEEDED: Deadline Exceeded",
    }


def test_readable_reflects_the_last_response_and_no_call_is_made_after_the_deadline(
    kubelet: Shown, record: PodResources
) -> None:
    kubelet.server.start()
    asked = kubelet.turn_away(0)
    readable_states = [record.readable]
    with pytest.raises(Unavailable, match=r"^PodResources: no time left for a call$"):
        record.list(within=0)
    readable_states.append(record.readable)
    assert asked.asked == 0
    record.list(within=10)
    readable_states.append(record.readable)
    assert readable_states == [True, False, True]
    record.close()
    with pytest.raises(Unavailable, match=r"^PodResources: closed$"):
        record.list(within=10)
    assert asked.asked == 1


def _hangs(kubelet: Shown) -> None:
    kubelet.server.start()
    kubelet.at["List"] = lambda _resource: time.sleep(1)


def _says_nothing(kubelet: Shown) -> socket.socket:
    """A server that accepts connections and sends nothing."""
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(kubelet.socket))
    mute.listen(64)
    return mute


def _denies(kubelet: Shown) -> None:
    """As an older kubelet does, too, which serves ``v1alpha1`` only."""
    kubelet.server.start()
    kubelet.turn_away(1, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("happens", "within", "reason"),
    [
        (_hangs, 0.3, "DEADLINE_EXCEEDED: "),
        (_says_nothing, 0.3, ""),  # a connection attempt or the call runs into the deadline
        (_denies, 3600, "PERMISSION_DENIED: turned away$"),
        (lambda _kubelet: None, 3600, "UNAVAILABLE: "),  # an absent socket
        (lambda kubelet: kubelet.socket.touch(), 3, "UNAVAILABLE: "),  # a file in its place
    ],
)
def test_an_unavailable_list_is_reported_in_time(
    kubelet: Shown,
    record: PodResources,
    happens: Callable[[Shown], socket.socket | None],
    within: float,
    reason: str,
) -> None:
    with (
        happens(kubelet) or nullcontext(),
        pytest.raises(Unavailable, match=f"^PodResources: {reason}"),
    ):
        record.list(within=within)


def test_closing_ends_the_pause_between_tries(kubelet: Shown) -> None:
    client = PodResources(kubelet.socket, resources=RESOURCES)
    kubelet.server.start()
    turns_away = kubelet.turn_away(1_000_000)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.list(within=30)
        except (Unavailable, ValueError) as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    eventually(lambda: turns_away.asked > 2, "it is asking")
    client.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [Unavailable]


# --- a kubelet that has just come up --------------------------------------------------


class CountedClock(FakeClock):
    """Stands still unless told, and counts how often it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return super().__call__()


@pytest.fixture
def stale(kubelet: Shown) -> CountedClock:
    """The socket's file is there, and nobody listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(kubelet.socket))
    return CountedClock()


def _tries(clock: CountedClock) -> None:
    """Wait until it has tried some more times."""
    before = clock.looks
    eventually(lambda: clock.looks > before + 6, "it tries again and again")


def test_an_existing_socket_is_retried_until_it_has_a_listener(
    kubelet: Shown, stale: CountedClock, folder: Path
) -> None:
    client = PodResources(kubelet.socket, resources=RESOURCES, clock=stale)
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list, within=10)
        _tries(stale)
        stale.now += 0.59
        _tries(stale)
        assert not listing.done()
        fresh = Shown(folder / "fresh")
        fresh.server.start()
        fresh.socket.replace(kubelet.socket)  # it is there at any moment
        assert listing.result(DEADLINE_S) == ()
    client.close()
    fresh.server.stop()


@pytest.mark.parametrize("within", [10.0, 0.3], ids=["patience", "deadline"])
def test_a_kubelet_without_a_listener_is_waited_for_only_briefly(
    kubelet: Shown, stale: CountedClock, within: float
) -> None:
    client = PodResources(kubelet.socket, resources=RESOURCES, clock=stale)
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list, within=within)
        _tries(stale)
        stale.now += min(within, 0.6)
        with pytest.raises(Unavailable, match=r"^PodResources: UNAVAILABLE: "):
            listing.result(DEADLINE_S)
    client.close()


def test_a_socket_whose_file_goes_is_not_waited_for(kubelet: Shown, stale: CountedClock) -> None:
    client = PodResources(kubelet.socket, resources=RESOURCES, clock=stale)
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list, within=10)
        _tries(stale)
        kubelet.socket.unlink()
        with pytest.raises(Unavailable, match=r"^PodResources: UNAVAILABLE: "):
            listing.result(DEADLINE_S)
    client.close()


def test_entries_whose_bytes_were_seen_before_are_the_same_objects(
    kubelet: Shown, record: PodResources
) -> None:
    """So it is known at once which pods are as they were; only the last answer is kept."""
    kubelet.pods = {"a": {"one": {NAMES.core: ["GPU-0::0"]}}, "b": {"one": {}}}
    kubelet.server.start()
    first = record.list(within=DEADLINE_S)
    kubelet.pods["b"] = {"one": {NAMES.core: ["GPU-0::1"]}}
    second = record.list(within=DEADLINE_S)
    assert second[0] is first[0]
    assert second[1] != first[1]
    kubelet.pods["b"] = {"one": {}}
    third = record.list(within=DEADLINE_S)
    assert third == first
    assert third[1] is not first[1]
