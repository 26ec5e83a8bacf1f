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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


def replica(name: str, leases: FakeLeases, clock: FakeClock) -> Election:
    return Election(
        leases,
        namespace="gpu-turnstile",
        name="lease",
        identity=name,
        clock=clock,
        now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
    )


def test_the_first_one_leads_and_the_lease_says_so(leases: FakeLeases, clock: FakeClock) -> None:
    one = replica("one", leases, clock)
    assert one.leads_for() == 0
    one.step()
    assert one.leads_for() == DURATION
    assert leases.lease is not None
    assert leases.lease["metadata"]["labels"] == {
        "app.kubernetes.io/component": "scheduler-extender",
        "app.kubernetes.io/part-of": "gpu-turnstile",
    }
    assert leases.lease["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 10,
        "acquireTime": "2030-01-01T00:00:00.000000Z",
        "renewTime": "2030-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


def test_a_term_is_counted_from_before_the_request(leases: FakeLeases, clock: FakeClock) -> None:
    """Others may count from when the API server has it; its answer comes later."""

    def take_long() -> None:
        clock.now += 4

    leases.on_store = take_long
    one = replica("one", leases, clock)
    one.step()
    assert one.leads_for() == DURATION - 4


def test_another_one_takes_over_only_once_the_lease_has_run_out(
    leases: FakeLeases, clock: FakeClock
) -> None:
    one, two = replica("one", leases, clock), replica("two", leases, clock)
    one.step()
    two.step()
    assert (two.leads_for(), two.holder) == (0, "one")
    clock.now += DURATION
    two.step()
    assert two.leads_for() == 0
    clock.now += 1
    two.step()
    assert (one.leads_for(), two.leads_for()) == (0, DURATION)
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1
    one.step()
    assert (one.leads_for(), one.holder) == (0, "two")


def test_a_lease_that_is_released_is_taken_at_once(leases: FakeLeases, clock: FakeClock) -> None:
    one, two = replica("one", leases, clock), replica("two", leases, clock)
    one.step()
    two.step()
    one.release()
    two.step()
    assert (one.leads_for(), two.leads_for()) == (0, DURATION)
    one.release()  # what is another's is left alone
    assert two.holder == "two"


def test_who_has_not_got_it_gives_nothing_back(leases: FakeLeases, clock: FakeClock) -> None:
    one, two = replica("one", leases, clock), replica("two", leases, clock)
    one.step()
    clock.now += 1
    assert leases.lease is not None
    leases.lease = {**leases.lease, "spec": {"holderIdentity": "two"}}
    one.release()
    assert leases.lease["spec"] == {"holderIdentity": "two"}
    leases.error = Unavailable("away")
    one.step()
    two.step()
    assert (one.leads_for(), two.leads_for()) == (0, 0)


@pytest.mark.parametrize("error", [Unavailable("away"), Rejected(403, "no")])
def test_a_lease_that_cannot_be_renewed_lasts_until_its_end(
    leases: FakeLeases, clock: FakeClock, error: Exception
) -> None:
    one = replica("one", leases, clock)
    one.step()
    leases.error = error
    clock.now += 5
    one.step()
    assert one.leads_for() == DURATION - 5
    clock.now += DURATION
    assert one.leads_for() == 0
    one.release()


def test_an_answer_that_is_lost_is_found_by_the_next_step(
    leases: FakeLeases, clock: FakeClock
) -> None:
    one = replica("one", leases, clock)
    leases.lose_answers = True
    one.step()
    assert one.leads_for() == 0
    leases.lose_answers = False
    one.step()
    assert one.leads_for() == DURATION


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseTransitions": "many"}])
def test_a_lease_that_nobody_holds_is_taken_whatever_is_in_it(
    leases: FakeLeases, clock: FakeClock, spec: object
) -> None:
    leases.lease = {"metadata": {"name": "lease", "resourceVersion": "7"}, "spec": spec}
    one = replica("one", leases, clock)
    one.step()
    assert one.leads_for() == DURATION


def test_a_holder_that_names_no_duration_is_given_ours(
    leases: FakeLeases, clock: FakeClock
) -> None:
    spec = {"holderIdentity": "other"}
    leases.lease = {"metadata": {"name": "lease", "resourceVersion": "7"}, "spec": spec}
    one = replica("one", leases, clock)
    one.step()
    clock.now += DURATION
    one.step()
    assert one.leads_for() == 0
    clock.now += 1
    one.step()
    assert one.leads_for() == DURATION


@patient
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["step", "lost", "away", "release", "die"])
        ).map(lambda each: each)
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


def test_who_comes_second_to_make_it_follows(leases: FakeLeases, clock: FakeClock) -> None:
    one, two = replica("one", leases, clock), replica("two", leases, clock)
    one.step()
    made, leases.lease = leases.lease, None
    get = leases.get_lease

    def late(namespace: str, name: str) -> Json | None:
        found = get(namespace, name)
        leases.lease = made
        return found

    leases.get_lease = late  # type: ignore[method-assign]
    two.step()
    assert two.leads_for() == 0
