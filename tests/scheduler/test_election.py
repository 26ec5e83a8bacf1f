"""Who binds: at most one at any time, and the next one soon after a death."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from scheduler.cluster import BIND_SECONDS
from scheduler.election import DURATION, Election
from tests.agent.builders import patient
from tests.agent.fakes import FakeClock

Json = dict[str, Any]


class FakeLeases:
    """A :class:`scheduler.election.LeaseApi` that checks resource versions."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.error: Exception | None = None
        self.lose_answers = False
        self.on_store: Callable[[], None] = lambda: None

    def get_lease(self, namespace: str, name: str) -> Json | None:
        if self.error:
            raise self.error
        return self.lease

    def create_lease(self, namespace: str, lease: Json) -> None:
        if self.lease is not None:
            raise Rejected(409, "exists")
        self._store(lease)

    def replace_lease(self, namespace: str, lease: Json) -> None:
        assert self.lease is not None
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Rejected(409, "modified")
        self._store(lease)

    def _store(self, lease: Json) -> None:
        self.version += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": metadata}
        self.on_store()
        if self.lose_answers:
            raise Unavailable("read timed out")


class Two:
    """Two replicas that want one lease."""

    def __init__(self) -> None:
        self.clock, self.leases = FakeClock(), FakeLeases()
        self.one, self.other = (replica(each, self.leases, self.clock) for each in ("one", "other"))

    def hold(self, spec: object) -> None:
        """Give the lease to another holder."""
        self.leases.lease = {"metadata": {"name": "lease", "resourceVersion": "7"}, "spec": spec}


@pytest.fixture
def two() -> Two:
    return Two()


def replica(name: str, leases: FakeLeases, clock: FakeClock) -> Election:
    return Election(
        leases,
        namespace="gpu-turnstile",
        name="lease",
        identity=name,
        clock=clock,
        now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
    )


def test_the_first_replica_leads_and_holds_the_lease(two: Two) -> None:
    assert two.one.leads_for() == 0
    two.one.step()
    assert two.one.leads_for() == DURATION
    assert two.leases.lease is not None
    assert two.leases.lease["metadata"]["labels"] == {
        "app.kubernetes.io/component": "scheduler-extender",
        "app.kubernetes.io/part-of": "gpu-turnstile",
    }
    assert two.leases.lease["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 10,
        "acquireTime": "2030-01-01T00:00:00.000000Z",
        "renewTime": "2030-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


def test_a_term_is_counted_from_before_the_request(two: Two) -> None:
    """Others may count from when the API server has it; its answer comes later."""

    def take_long() -> None:
        two.clock.now += 4

    two.leases.on_store = take_long
    two.one.step()
    assert two.one.leads_for() == DURATION - 4


def test_another_one_takes_over_only_once_the_lease_has_run_out(two: Two) -> None:
    two.one.step()
    two.other.step()
    assert (two.other.leads_for(), two.other.holder) == (0, "one")
    two.clock.now += DURATION
    two.other.step()
    assert two.other.leads_for() == 0
    two.clock.now += 1
    two.other.step()
    assert (two.one.leads_for(), two.other.leads_for()) == (0, DURATION)
    assert two.leases.lease is not None
    assert two.leases.lease["spec"]["leaseTransitions"] == 1
    two.one.step()
    assert (two.one.leads_for(), two.one.holder) == (0, "other")


def test_a_lease_that_is_released_is_taken_at_once(two: Two) -> None:
    two.one.step()
    two.other.step()
    two.one.release()
    two.other.step()
    assert (two.one.leads_for(), two.other.leads_for()) == (0, DURATION)
    two.one.release()  # what is another's is left alone
    assert two.other.holder == "other"


def test_a_lock_that_was_not_acquired_is_not_released(two: Two) -> None:
    two.one.step()
    two.clock.now += 1
    two.leases.lease = {**(two.leases.lease or {}), "spec": {"holderIdentity": "other"}}
    two.one.release()
    assert two.leases.lease["spec"] == {"holderIdentity": "other"}


@pytest.mark.parametrize("error", [Unavailable("away"), Rejected(403, "no")])
def test_a_lease_that_cannot_be_renewed_lasts_until_its_end(two: Two, error: Exception) -> None:
    two.one.step()
    two.leases.error = error
    two.clock.now += 5
    two.one.step()
    assert two.one.leads_for() == DURATION - 5
    two.clock.now += DURATION
    assert two.one.leads_for() == 0
    two.one.release()


def test_a_lost_response_is_detected_by_the_next_step(two: Two) -> None:
    two.leases.lose_answers = True
    two.one.step()
    assert two.one.leads_for() == 0
    two.leases.lose_answers = False
    two.one.step()
    assert two.one.leads_for() == DURATION


@pytest.mark.parametrize("spec", [None, {"holderIdentity": None, "leaseTransitions": "many"}])
def test_a_lease_without_holder_is_acquired_whatever_it_contains(two: Two, spec: object) -> None:
    two.hold(spec)
    two.one.step()
    assert two.one.leads_for() == DURATION


def test_a_holder_that_names_no_duration_is_given_ours(two: Two) -> None:
    two.hold({"holderIdentity": "another"})
    for seconds, leads_for in ((0, 0), (DURATION, 0), (1, DURATION)):
        two.clock.now += seconds
        two.one.step()
        assert two.one.leads_for() == leads_for


def test_a_replica_that_creates_the_lease_second_follows(two: Two) -> None:
    two.one.step()
    made, two.leases.lease = two.leases.lease, None
    get = two.leases.get_lease

    def late(namespace: str, name: str) -> Json | None:
        found = get(namespace, name)
        two.leases.lease = made
        return found

    two.leases.get_lease = late  # type: ignore[method-assign]
    two.other.step()
    assert two.other.leads_for() == 0


@patient
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["step", "lost", "away", "release", "die"]))
        | st.floats(0.1, 20),
        max_size=60,
    )
)
def test_at_no_time_two_may_bind(events: list[tuple[int, str] | float]) -> None:
    """Whoever may begin a Binding is alone until that Binding is over."""
    leases, clock = FakeLeases(), FakeClock()
    replicas = [replica(str(number), leases, clock) for number in range(3)]
    until = [0.0] * 3  # when the last Binding that each may have begun is over
    for event in events:
        if isinstance(event, float):
            clock.now += event
        else:
            number, what = event
            leases.lose_answers = what == "lost"
            leases.error = Unavailable("away") if what == "away" else None
            if what == "die":
                replicas[number] = replica(f"{number}+", leases, clock)
            elif what == "release":
                if until[number] <= clock.now:  # the last requests are answered first
                    replicas[number].release()
            else:
                replicas[number].step()
        for number, each in enumerate(replicas):
            if each.leads_for() > BIND_SECONDS:
                others = [until[other] for other in range(3) if other != number]
                assert all(clock.now >= other for other in others)
                until[number] = max(until[number], clock.now + BIND_SECONDS)
