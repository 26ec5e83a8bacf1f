"""The client of PodResources, against the simulated kubelet's on a real unix socket."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

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
    """The kubelet's PodResources, not started yet.

    Attributes:
        pods: what it lists: the IDs by pod, container and resource.
    """

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
        """Refuse so many calls, by default because of the rate limit."""
        self.at["List"] = turns_away = TurnsAway(TurnedAway("turned away", code), times)
        return turns_away


@pytest.fixture
def kubelet(folder: Path) -> Iterator[Shown]:
    made = Shown(folder)
    yield made
    made.server.stop()


@pytest.fixture
def client(kubelet: Shown) -> Iterator[PodResources]:
    made = PodResources(kubelet.socket, resources=RESOURCES)
    yield made
    made.close()


def test_entries_of_one_id_each_are_added_up(kubelet: Shown, client: PodResources) -> None:
    """K16; and resources of other plugins are passed over."""
    cores = ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
    one = {NAMES.core: cores, NAMES.memory: ["GPU-0::7"], "example.com/nic": ["eth0"]}
    kubelet.pods = {"a": {"one": one, "two": {}}, "b": {}}
    kubelet.server.start()
    held = {CORE: frozenset(cores), MEMORY: frozenset({"GPU-0::7"})}
    assert client.list(within=DEADLINE_S) == (
        ListedPod("default", "a", (ListedContainer("one", held), ListedContainer("two", {}))),
        ListedPod("default", "b", ()),
    )


def test_the_agents_own_daemonset_is_left_out(kubelet: Shown) -> None:
    """It requests no GPU, and would be guessed while the API shows no pods."""
    kubelet.pods = {"agent-x7k2p": {"agent": {}}, "agent-9b1zz": {}, "agent-a-1": {}, "b": {}}
    kubelet.server.start()
    for namespace, names in (("default", ["agent-a-1", "b"]), ("other", [*kubelet.pods])):
        own = (namespace, "agent-x7k2p")
        client = PodResources(kubelet.socket, resources=RESOURCES, own=own)
        assert [each.name for each in client.list(within=DEADLINE_S)] == names
        client.close()


def test_a_response_beyond_grpcs_default_size_is_read(kubelet: Shown, client: PodResources) -> None:
    long = "GPU-" + "0" * 50
    kubelet.pods = {"a": {"one": {NAMES.core: [f"{long}::{n}" for n in range(50_000)]}}}
    kubelet.server.start()
    (pod,) = client.list(within=DEADLINE_S)
    assert len(pod.containers[0].held[CORE]) == 50_000


def test_a_rate_limited_call_is_retried_until_the_deadline(
    kubelet: Shown, client: PodResources
) -> None:
    kubelet.server.start()
    turns_away = kubelet.turn_away(3)
    assert client.list(within=DEADLINE_S) == ()
    assert turns_away.asked == 4
    kubelet.turn_away(1_000_000)
    with pytest.raises(Unavailable) as error:
        client.list(within=0.3)
    # Which of the two depends on whether the deadline falls into a call or a pause.
    assert str(error.value) in {
        "PodResources: rate limited until the deadline",
        "PodResources: DEADLINE_EXCEEDED: Deadline Exceeded",
    }


def test_readable_is_whether_the_last_call_succeeded_and_none_is_made_after_the_deadline(
    kubelet: Shown, client: PodResources
) -> None:
    kubelet.server.start()
    calls = kubelet.turn_away(0)
    states = [client.readable]
    with pytest.raises(Unavailable, match=r"^PodResources: no time left for a call$"):
        client.list(within=0)
    states.append(client.readable)
    assert calls.asked == 0
    client.list(within=DEADLINE_S)
    states.append(client.readable)
    assert states == [True, False, True]
    client.close()
    with pytest.raises(Unavailable, match=r"^PodResources: closed$"):
        client.list(within=DEADLINE_S)
    assert calls.asked == 1


def test_a_list_counts_only_while_the_kubelet_serves_plugins(kubelet: Shown, folder: Path) -> None:
    """A kubelet that starts lists nothing until it has read its checkpoint (K11)."""
    plugins = folder / "kubelet.sock"
    client = PodResources(kubelet.socket, resources=RESOURCES, kubelet_socket=plugins)
    kubelet.server.start()
    early = pytest.raises(Unavailable, match=r"^PodResources: the kubelet is starting$")
    with early:
        client.list(within=DEADLINE_S)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(plugins))
        with early:  # as an earlier kubelet has left it
            client.list(within=DEADLINE_S)
        assert not client.readable
        served.listen()
        assert client.list(within=DEADLINE_S) == ()
    client.close()


def _hangs(kubelet: Shown) -> None:
    kubelet.server.start()
    kubelet.at["List"] = lambda _resource: time.sleep(1)


def _sends_nothing(kubelet: Shown) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(kubelet.socket))
    listener.listen(64)
    return listener


def _denies(kubelet: Shown) -> None:
    """Refuse as an older kubelet, which serves ``v1alpha1`` only."""
    kubelet.server.start()
    kubelet.turn_away(1, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("happens", "within", "reason"),
    [
        (_hangs, 0.3, "DEADLINE_EXCEEDED: "),
        (_sends_nothing, 0.3, ""),  # a connection attempt or the call runs into the deadline
        (_denies, 3600, "PERMISSION_DENIED: turned away$"),
        (lambda _kubelet: None, 3600, "UNAVAILABLE: "),  # an absent socket
        (lambda kubelet: kubelet.socket.touch(), 3600, "UNAVAILABLE: "),  # a file in its place
    ],
)
def test_an_unavailable_list_is_reported_in_time(
    kubelet: Shown,
    client: PodResources,
    happens: Callable[[Shown], socket.socket | None],
    within: float,
    reason: str,
) -> None:
    with (
        happens(kubelet) or nullcontext(),
        pytest.raises(Unavailable, match=f"^PodResources: {reason}"),
    ):
        client.list(within=within)


def test_closing_ends_the_pause_between_tries(kubelet: Shown, client: PodResources) -> None:
    kubelet.server.start()
    turns_away = kubelet.turn_away(1_000_000)
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list, within=DEADLINE_S)
        eventually(lambda: turns_away.asked > 2, "it is called")
        client.close()
        assert isinstance(listing.exception(DEADLINE_S), Unavailable)


# --- a kubelet that has just started -------------------------------------------------


class CountedClock(FakeClock):
    reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return super().__call__()


@pytest.fixture
def clock(kubelet: Shown) -> CountedClock:
    """The client's clock; the kubelet's socket exists, and no process listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(kubelet.socket))
    return CountedClock()


@contextmanager
def _retrying(kubelet: Shown, clock: CountedClock, within: float) -> Iterator[Future[Any]]:
    """List pods in a thread; it has been tried several times."""
    client = PodResources(kubelet.socket, resources=RESOURCES, clock=clock)
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(client.list, within=within)
        _wait_for_tries(clock, listing)
        yield listing
    client.close()


def _wait_for_tries(clock: CountedClock, listing: Future[Any]) -> None:
    before = clock.reads
    eventually(lambda: clock.reads > before + 6 or listing.done(), "it tries again and again")


def test_an_existing_socket_is_retried_until_it_has_a_listener(
    kubelet: Shown, clock: CountedClock, folder: Path
) -> None:
    fresh = Shown(folder / "fresh")
    with _retrying(kubelet, clock, DEADLINE_S) as listing:
        clock.now += 0.59
        _wait_for_tries(clock, listing)
        assert not listing.done()
        fresh.server.start()
        fresh.socket.replace(kubelet.socket)  # which exists at any moment
        assert listing.result(DEADLINE_S) == ()
    fresh.server.stop()


@pytest.mark.parametrize(
    ("within", "passes", "is_deleted"),
    [(DEADLINE_S, 0.6, False), (0.3, 0.3, False), (DEADLINE_S, 0, True)],
    ids=["patience", "deadline", "deleted socket"],
)
def test_a_socket_without_a_listener_is_retried_only_briefly(
    kubelet: Shown, clock: CountedClock, within: float, *, passes: float, is_deleted: bool
) -> None:
    with _retrying(kubelet, clock, within) as listing:
        clock.now += passes
        if is_deleted:
            kubelet.socket.unlink()
        # A loaded machine may exceed the deadline in the first call already.
        refused = "UNAVAILABLE" if within == DEADLINE_S else "(UNAVAILABLE|DEADLINE_EXCEEDED)"
        with pytest.raises(Unavailable, match=rf"^PodResources: {refused}: "):
            listing.result(DEADLINE_S)


def test_entries_whose_bytes_were_seen_before_are_the_same_objects(
    kubelet: Shown, client: PodResources
) -> None:
    """So unchanged pods are recognized at once; only the last response is kept."""
    kubelet.pods = {"a": {"one": {NAMES.core: ["GPU-0::0"]}}, "b": {"one": {}}}
    kubelet.server.start()
    first = client.list(within=DEADLINE_S)
    kubelet.pods["b"] = {"one": {NAMES.core: ["GPU-0::1"]}}
    second = client.list(within=DEADLINE_S)
    assert second[0] is first[0]
    assert second[1] != first[1]
    kubelet.pods["b"] = {"one": {}}
    third = client.list(within=DEADLINE_S)
    assert third == first
    assert third[1] is not first[1]
