"""Elections: at most one replica binds at any time, and the next one soon after a kill."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from scheduler.cluster import EVICT_SECONDS, LONGEST_BINDING
from scheduler.election import DURATION, LAST_REQUESTS, KubeSchedulerLease
from tests.agent.builders import patient
from tests.agent.fakes import FakeClock
from tests.examples import share
from tests.placement.cluster.builders import Json
from tests.scheduler.leases import FakeLeases, replica


class Two:
    def __init__(self) -> None:
        self.clock, self.leases = FakeClock(), FakeLeases()
        self.one, self.other = (replica(each, self.leases, self.clock) for each in ("one", "other"))

    def hold(self, spec: object) -> None:
        self.leases.lease = {"metadata": {"name": "lease", "resourceVersion": "7"}, "spec": spec}


@pytest.fixture
def two() -> Two:
    return Two()


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
    """Others may count from when the API server has it; its response comes later."""

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


@pytest.mark.parametrize("error", [Unavailable("no response"), Rejected(403, "no")])
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
    two.leases.loses_responses = True
    two.one.step()
    assert two.one.leads_for() == 0
    two.leases.loses_responses = False
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
    two.leases.get_lease = lambda *_: None  # type: ignore[method-assign]
    two.other.step()
    assert two.other.leads_for() == 0


@patient
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["step", "lost", "unavailable", "release", "kill"])
        )
        | st.floats(0.1, 20),
        max_size=60,
    )
)
def test_no_two_replicas_may_bind_at_the_same_time(events: list[tuple[int, str] | float]) -> None:
    """A replica that may begin a Binding is alone until that Binding is over."""
    leases, clock = FakeLeases(), FakeClock()
    replicas = [replica(str(number), leases, clock) for number in range(3)]
    until = [0.0] * 3  # when the last Binding that each may have begun is over
    for event in events:
        if isinstance(event, float):
            clock.now += event
        else:
            number, what = event
            leases.loses_responses = what == "lost"
            leases.error = Unavailable("no response") if what == "unavailable" else None
            if what == "kill":
                replicas[number] = replica(f"{number}+", leases, clock)
            elif what == "release":
                if until[number] <= clock.now:  # after the last responses
                    replicas[number].release()
            else:
                replicas[number].step()
        for number, each in enumerate(replicas):
            if each.leads_for() > LONGEST_BINDING:
                others = [until[other] for other in range(3) if other != number]
                assert all(clock.now >= other for other in others)
                until[number] = max(until[number], clock.now + LONGEST_BINDING)


# --- beside a kube-scheduler ----------------------------------------------------------------

KUBE_SCHEDULER_SECONDS = 15
"""The default ``leaseDuration`` of kube-scheduler."""
SETTLED = LAST_REQUESTS + LONGEST_BINDING


class KubeScheduler:
    """The election of one kube-scheduler after the other in a pod, as client-go has it.

    ``tryAcquireOrRenew`` and ``release`` in ``client-go/tools/leaderelection/leaderelection.go``.
    """

    def __init__(self, pod: str, leases: FakeLeases, clock: FakeClock) -> None:
        self.pod, self.leases, self.clock = pod, leases, clock
        self.starts = 0
        self.requests_until = 0.0  # a leader may send requests until its end, even after its term
        self._seen: tuple[Json | None, float] = (None, clock.now)

    @property
    def identity(self) -> str:
        return f"{self.pod}_{self.starts}"

    def run(self) -> None:
        spec = self._spec()
        if spec != self._seen[0]:
            self._seen = spec, self.clock.now
        holder, seconds = spec.get("holderIdentity"), spec.get("leaseDurationSeconds", 0)
        if holder not in ("", None, self.identity) and self._seen[1] + seconds > self.clock.now:
            return
        new = holder != self.identity
        self._write(self.identity, KUBE_SCHEDULER_SECONDS, spec.get("leaseTransitions", -1) + new)
        self._seen = self._spec(), self.clock.now
        self.requests_until = float("inf")

    def end(self, *, releases: bool) -> None:
        """End, and start again."""
        spec = self._spec()
        if releases and spec.get("holderIdentity") == self.identity:
            self._write("", 1, spec["leaseTransitions"])
        self.requests_until = min(self.requests_until, self.clock.now + LAST_REQUESTS)
        self.starts += 1

    def _spec(self) -> Json:
        return {} if self.leases.lease is None else self.leases.lease["spec"]

    def _write(self, holder: str, seconds: int, transitions: int) -> None:
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "leaseTransitions": transitions,
            "renewTime": str(self.clock.now),
        }
        self.leases.store({**(self.leases.lease or {}), "spec": spec})


def beside(pod: str, leases: FakeLeases, clock: FakeClock) -> KubeSchedulerLease:
    return KubeSchedulerLease(
        leases,
        namespace="gpu-turnstile",
        name="lease",
        identity=pod,
        clock=clock,
    )


class Pods:
    """Two pods with a kube-scheduler and an extender each."""

    def __init__(self) -> None:
        self.clock, self.leases = FakeClock(), FakeLeases()
        names = ("pod-0", "pod-1")
        self.schedulers = [KubeScheduler(each, self.leases, self.clock) for each in names]
        self.extenders = [beside(each, self.leases, self.clock) for each in names]

    def go_on(self, seconds: float, *renewing: int) -> None:
        """Let time go by; these kube-schedulers renew, and all extenders read, twice a second."""
        for _ in range(round(seconds * 2)):
            self.clock.now += 0.5
            for number in renewing:
                self.schedulers[number].run()
            for each in self.extenders:
                each.step()

    def leading(self) -> list[bool]:
        return [each.leads_for() > LONGEST_BINDING for each in self.extenders]

    def writes_until(self, number: int) -> float:
        """Return when the last write has ended that an extender may start within 0.5 s, or 0."""
        now, extender = self.clock.now, self.extenders[number]
        bind = min(
            0.5,
            extender.leads_for() - LONGEST_BINDING,
            self.schedulers[number].requests_until - now,
        )
        evict = min(0.5, extender.acts_for() - EVICT_SECONDS)
        return max(
            now + bind + LONGEST_BINDING if bind >= 0 else 0.0,
            now + evict + EVICT_SECONDS if evict >= 0 else 0.0,
        )


@pytest.fixture
def pods() -> Pods:
    return Pods()


def test_a_killed_kube_scheduler_and_its_extender_are_replaced_after_the_lease(pods: Pods) -> None:
    pods.go_on(20, 0)
    pods.go_on(KUBE_SCHEDULER_SECONDS, 1)
    assert pods.extenders[1].holder == "pod-0_0"
    pods.go_on(0.5 + SETTLED, 1)
    assert pods.leading() == [False, True]


def test_a_kube_scheduler_that_starts_again_in_its_pod_has_a_new_term(pods: Pods) -> None:
    """Its Bindings go on in the same state, but another one might have led in between."""
    pods.go_on(20, 0)
    pods.schedulers[0].end(releases=True)
    pods.go_on(1, 0)
    assert (pods.extenders[0].holder, pods.leading()) == ("pod-0_1", [False, False])
    pods.go_on(SETTLED, 0)
    assert pods.leading() == [True, False]


def test_a_lease_that_cannot_be_read_is_believed_until_another_could_bind(pods: Pods) -> None:
    pods.go_on(20, 0)
    pods.leases.error = Unavailable("no response")
    pods.go_on(SETTLED - 0.5)
    assert pods.leading() == [True, False]
    pods.go_on(0.5)
    assert pods.leading() == [False, False]


def test_a_renewal_that_is_seen_late_counts_from_the_read_before(pods: Pods) -> None:
    pods.go_on(20, 0)
    pods.schedulers[0].run()
    pods.clock.now += 8
    pods.extenders[0].step()
    assert pods.extenders[0].leads_for() == KUBE_SCHEDULER_SECONDS - 8
    pods.schedulers[0].run()
    pods.extenders[0].step()
    assert pods.extenders[0].leads_for() == LONGEST_BINDING + SETTLED


def test_a_term_between_two_reads_is_detected_by_the_number_of_terms(pods: Pods) -> None:
    """A kube-scheduler that did not notice that it lost its lease keeps its name."""
    pods.go_on(20, 0)
    pods.clock.now += KUBE_SCHEDULER_SECONDS / 2
    pods.extenders[0].step()
    pods.schedulers[1].run()
    pods.clock.now += KUBE_SCHEDULER_SECONDS
    pods.schedulers[1].run()
    pods.schedulers[1].end(releases=True)
    pods.go_on(1, 0)
    assert (pods.extenders[0].holder, pods.leading()) == ("pod-0_0", [False, False])
    pods.go_on(SETTLED, 0)
    assert pods.leading() == [True, False]


@pytest.mark.parametrize("holder", ["pod-1_a", "pod-0", "pod-0-x_a", "", None, 7])
def test_another_holder_is_not_this_pod(pods: Pods, holder: object) -> None:
    for version in range(30):
        metadata = {"resourceVersion": str(version)}
        pods.leases.lease = {"metadata": metadata, "spec": {"holderIdentity": holder}}
        pods.go_on(1)
        assert pods.extenders[0].leads_for() == 0


FAULTS = ["release", "kill", "scheduler", "extender", "restart", "none"]


@settings(patient, max_examples=share(300))
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(FAULTS), st.sampled_from([1, 3, 10, 14, 33])),
        min_size=2,
        max_size=20,
    )
)
def test_no_two_pods_bind_or_evict_at_the_same_time(faults: list[tuple[int, str, int]]) -> None:
    """A replica that starts a write has listed the pods after all writes of the other had ended.

    kube-schedulers and extenders run twice a second, and each may lose the API server for a while.
    A kube-scheduler that has lost its term without knowing requests Bindings. None requests
    evictions: they go on after the kube-scheduler's end.
    """
    pods = Pods()
    until = [0.0] * 2  # when the last write that each may have started has ended
    listed: list[float | None] = [None, None]
    cut_off: set[tuple[str, int]] = set()
    pods.go_on(20, 0)
    for number, what, ticks in faults:
        if what in ("release", "kill"):
            pods.schedulers[number].end(releases=what == "release")
        elif what == "restart":  # of the extender's container
            name = pods.schedulers[number].pod
            pods.extenders[number] = beside(name, pods.leases, pods.clock)
        elif what != "none":
            cut_off ^= {(what, number)}
        for tick in range(ticks):
            order = (0, 1) if tick % 2 else (1, 0)
            for each in order:
                now, leads_for = pods.clock.now, pods.extenders[each].leads_for()
                if leads_for == 0:
                    listed[each] = None
                elif listed[each] is None:
                    listed[each] = now
                ends = pods.writes_until(each)
                if ends:
                    assert (listed[each] or 0.0) >= until[1 - each]
                    until[each] = max(until[each], ends)
            pods.clock.now += 0.5
            for each in order:
                if ("scheduler", each) not in cut_off:
                    pods.schedulers[each].run()
                if ("extender", each) not in cut_off:
                    pods.extenders[each].step()
