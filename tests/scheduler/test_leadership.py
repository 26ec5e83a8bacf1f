"""Leadership: when a replica may bind, and how kube-scheduler finds it."""

import pytest

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from scheduler.cluster import EVICT_SECONDS, SchedulerApi
from scheduler.election import DURATION
from scheduler.following import Watches
from scheduler.leadership import LeaderEndpoint, Leadership
from tests.agent.fakes import FakeClock
from tests.placement.cluster.builders import Json
from tests.scheduler.leases import FakeLeases, replica, take_turn


class FakeWatches(Watches):
    """Watches that have listed as far as the test says."""

    in_step = True

    def __init__(self) -> None:
        self.requested = self.listed = self.started = 0

    def start(self) -> None:
        self.started += 1

    def list_pods_again(self) -> int:
        self.requested += 1
        return self.requested

    def has_listed(self, number: int) -> bool:
        return self.in_step and self.listed >= number


class FakeSlices(SchedulerApi):
    def __init__(self) -> None:
        self.slice: Json = {"endpoints": None}
        self.patches: list[Json] = []
        self.names: set[str] = set()
        self.error: Exception | None = None

    def get_slice(self, namespace: str, name: str) -> Json:
        if self.error:
            raise self.error
        self.names.add(name)
        return self.slice

    def patch_slice(self, namespace: str, name: str, patch: Json) -> None:
        self.names.add(name)
        self.patches.append(patch)
        self.slice = {**self.slice, **patch}


class Stage:
    def __init__(self, *, alone: bool = False, address: str = "10.0.0.7") -> None:
        self.clock = FakeClock()
        self.leases = FakeLeases()
        self.watches = FakeWatches()
        self.slices = FakeSlices()
        self.election = None if alone else replica("one", self.leases, self.clock)
        endpoint = self.endpoint = LeaderEndpoint(
            api=self.slices, namespace="gpu-turnstile", name="slice", address=address, port=8444
        )
        self.leadership = Leadership(self.election, self.watches, endpoint, clock=self.clock)

    def turn(self, seconds: float = 3.0) -> None:
        """Let the loop run once, *seconds* later."""
        self.clock.now += seconds
        take_turn(self.leadership)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_new_leader_binds_once_it_has_listed_the_pods_again(stage: Stage) -> None:
    assert stage.leadership.not_binding() == (
        "not the leader: no replica held the lease when it was last read"
    )
    stage.turn()
    assert stage.watches.started == 1
    assert stage.leadership.leads
    assert stage.watches.requested == 1
    assert stage.leadership.not_binding() == ("the leader is not ready yet: pods are being listed")
    stage.watches.listed = 1
    stage.turn()
    assert stage.leadership.not_binding() == ""


def test_a_term_that_ends_and_another_one_list_again(stage: Stage) -> None:
    stage.turn()
    stage.watches.listed = 1
    stage.turn()
    stage.leases.error = Unavailable("no response")
    stage.turn(DURATION - 3.5)
    assert stage.leadership.not_binding() == (
        "not the leader: one held the lease when it was last read"
    )
    stage.turn(10)
    assert not stage.leadership.leads
    stage.leases.error = None
    stage.turn()
    assert stage.watches.requested == 2
    assert stage.leadership.not_binding() == ("the leader is not ready yet: pods are being listed")


@pytest.mark.parametrize(("address", "name"), [("10.0.0.7", "slice"), ("fd00::7", "slice-ipv6")])
def test_the_leader_writes_itself_into_the_slice_of_its_address_type_and_does_so_again(
    address: str, name: str
) -> None:
    stage = Stage(address=address)
    stage.watches.listed = 1
    stage.turn()
    wanted = {
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": 8444, "protocol": "TCP"}],
    }
    assert stage.slices.patches == [wanted]
    stage.turn(11)
    assert stage.slices.patches == [wanted]
    stage.slices.slice = {"endpoints": [{"addresses": ["10.0.0.9"]}, 7]}
    stage.turn(11)
    assert stage.slices.patches == [wanted, wanted]
    assert stage.slices.names == {name}


@pytest.mark.parametrize("error", [Unavailable("no response"), Rejected(404, "no such slice")])
def test_a_slice_that_cannot_be_written_is_tried_again(stage: Stage, error: Exception) -> None:
    stage.watches.listed = 1
    stage.slices.error = error
    stage.turn()
    assert stage.leadership.not_binding() == ""
    stage.slices.error = None
    stage.turn(11)
    assert len(stage.slices.patches) == 1


def test_an_unrequested_write_waits_for_the_next_read_of_the_lease(stage: Stage) -> None:
    assert stage.election is not None
    left, waited = [EVICT_SECONDS], list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        stage.clock.now += seconds
        if len(waited) == 3:
            left.append(EVICT_SECONDS + 0.1)

    stage.election.acts_for = lambda: left[-1]  # type: ignore[method-assign]
    leadership = stage.leadership = Leadership(
        stage.election, stage.watches, stage.endpoint, clock=stage.clock, wait=wait
    )
    stage.turn()
    assert leadership.not_acting() == "the leader is not ready yet: pods are being listed"
    assert waited == []
    stage.watches.listed = 1
    stage.turn()
    assert leadership.not_acting() == ""
    assert len(waited) == 3

    left[:] = [EVICT_SECONDS]
    assert leadership.not_acting() == "the lease was not read for 4 s"


def test_a_single_replica_needs_no_lease() -> None:
    stage = Stage(alone=True)
    assert stage.leadership.leads
    stage.turn()
    assert stage.leadership.not_binding() == ""
    stage.leadership.end()
    assert stage.leadership.not_binding() == "shutting down"


@pytest.mark.parametrize("ends", [True, False])
def test_bindings_in_progress_end_before_the_lease_is_released(stage: Stage, *, ends: bool) -> None:
    """Else the next leader lists the pods, and one is bound after that."""
    assert stage.election is not None
    stage.election.step()
    held: list[bool] = []
    waited: list[float] = []

    def wait(seconds: float) -> None:
        assert stage.election is not None
        held.append(stage.election.leads_for() > 0)
        waited.append(seconds)
        stage.clock.now += seconds

    leadership = Leadership(
        stage.election, stage.watches, stage.endpoint, clock=stage.clock, wait=wait
    )
    leadership.end(is_binding=lambda: len(waited) < 3 if ends else True)
    assert all(held)
    assert sum(waited) == pytest.approx(0.15 if ends else 5, abs=0.06)
    assert stage.election.leads_for() == 0


def test_without_a_slice_nothing_is_written() -> None:
    slices = FakeSlices()
    LeaderEndpoint(api=slices, namespace="n", name="", address="", port=1).publish()
    assert slices.patches == []
