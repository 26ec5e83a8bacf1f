"""The device manager's books, without any I/O."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.demand import ContainerKind
from simulator.kubelet.answers import Answer
from simulator.kubelet.devices import AllocateCall, Devices, Options, PreferCall, SaveBooks, Step
from simulator.kubelet.errors import AdmissionFailure, CallFailed, StartFailure
from simulator.kubelet.numa import Device, NumaHint, no_hint
from simulator.kubelet.pods import Container, Pod, requests_of
from tests.examples import share

R, S = "example.com/r", "example.com/s"
INIT, SIDECAR, MAIN = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.MAIN


def make(
    count: int = 6,
    *,
    resources: tuple[str, ...] = (R,),
    nodes: Mapping[str, tuple[int, ...]] | None = None,
    hint: NumaHint = no_hint,
    exact: bool = True,
    seed: int = 0,
) -> Devices:
    devices = Devices(random=Random(seed), numa_hint=hint, preferred_when_exact=exact)
    devices.sources_ready = True
    for resource in resources:
        devices.connected(resource, Options(pre_start=True, preferred=True))
        ids = [f"{resource[-1]}{index}" for index in range(count)]
        devices.advertised(resource, [Device(id_, True, (nodes or {}).get(id_, ())) for id_ in ids])
    return devices


def a_pod(*containers: Container, uid: str = "u1") -> Pod:
    return Pod(uid, "default", uid, "2026", containers)


def main(name: str = "c", **limits: int) -> Container:
    return Container(name, MAIN, {f"example.com/{each}": count for each, count in limits.items()})


class Driver:
    """Answers steps as a plugin would, and keeps them."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.active: set[str] = set()
        self.steps: list[Step] = []
        self.prefer: list[str] | CallFailed = []
        self.answer: Answer | CallFailed | None = Answer(envs={"A": "1"})

    def alive(self) -> Collection[str]:
        return self.active

    def admit(self, pod: Pod) -> list[Step]:
        self.active.add(pod.uid)
        self.steps = []
        for container in pod.containers:
            self.allocate(pod, container)
        return self.steps

    def allocate(self, pod: Pod, container: Container) -> None:
        steps = self.devices.allocate(pod.uid, container, self.alive)
        try:
            step = next(steps)
            while True:
                self.steps.append(step)
                step = self._next(steps, step)
        except StopIteration:
            return

    def _next(self, steps, step: Step) -> Step:  # type: ignore[no-untyped-def]  # a generator's ends
        if isinstance(step, SaveBooks):
            return steps.send(None)  # type: ignore[no-any-return]
        answer = tuple(self.prefer) if isinstance(self.prefer, list) else self.prefer
        reply = answer if isinstance(step, PreferCall) else self.answer
        if isinstance(reply, CallFailed):
            return steps.throw(reply)  # type: ignore[no-any-return]
        return steps.send(reply)  # type: ignore[no-any-return]

    def held(self, uid: str = "u1", container: str = "c", resource: str = R) -> set[str]:
        holding = self.devices.pods.get(uid, {}).get(container, {}).get(resource)
        return set() if holding is None else set(holding.ids)


def calls(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_without_alignment_the_plugin_is_asked_even_when_exactly_enough_are_free() -> None:
    """As the source of 1.36 has it: nothing is aligned, so the early return never comes."""
    assert calls(Driver(make(3)).admit(a_pod(main(r=3))))[0] == "PreferCall"


NUMA = {"r0": (0,), "r1": (0,), "r2": (1,), "r3": (1,), "r4": (1,)}


def test_with_alignment_only_aligned_devices_are_offered() -> None:
    driver = Driver(make(6, nodes=NUMA, hint=lambda uid, name: {1}))
    [prefer, allocate, _] = driver.admit(a_pod(main(r=2)))
    assert isinstance(prefer, PreferCall)
    assert set(prefer.available) == {"r2", "r3", "r4"}
    assert isinstance(allocate, AllocateCall)
    assert set(allocate.ids) < {"r2", "r3", "r4"}


def test_with_alignment_no_preferred_call_is_made_when_exactly_the_aligned_ones_fit() -> None:
    driver = Driver(make(6, nodes=NUMA, hint=lambda uid, name: {1}))
    [allocate, _] = driver.admit(a_pod(main(r=3)))
    assert isinstance(allocate, AllocateCall)
    assert set(allocate.ids) == {"r2", "r3", "r4"}


def test_with_too_few_aligned_ones_these_must_be_included_in_the_preference() -> None:
    driver = Driver(make(6, nodes=NUMA, hint=lambda uid, name: {0}))
    [prefer, allocate, _] = driver.admit(a_pod(main(r=3)))
    assert isinstance(prefer, PreferCall)
    assert set(prefer.must_include) == {"r0", "r1"}
    assert len(prefer.available) == 6
    assert isinstance(allocate, AllocateCall)
    # the rest from devices on other nodes before those on none
    assert set(allocate.ids) - {"r0", "r1"} < {"r2", "r3", "r4"}


def test_devices_of_an_init_container_are_reused_without_a_preferred_call() -> None:
    driver = Driver(make())
    pod = a_pod(Container("i", INIT, {R: 3}), main("c", r=2))
    steps = driver.admit(pod)
    assert calls(steps) == ["PreferCall", "AllocateCall", "SaveBooks", "AllocateCall", "SaveBooks"]
    assert driver.held(container="c") < driver.held(container="i")


def test_reused_devices_that_do_not_suffice_must_be_included() -> None:
    driver = Driver(make())
    pod = a_pod(Container("i", INIT, {R: 2}), main("c", r=3))
    prefer = driver.admit(pod)[3]
    assert isinstance(prefer, PreferCall)
    assert set(prefer.must_include) == driver.held(container="i")
    assert (prefer.size, len(prefer.available)) == (3, 6)
    assert driver.held(container="i") < driver.held(container="c")


def test_a_sidecar_keeps_what_it_took_over_from_an_init_container() -> None:
    driver = Driver(make())
    pod = a_pod(
        Container("i", INIT, {R: 2}),
        Container("s", SIDECAR, {R: 1}),
        main("c", r=1),
        main("d", r=1),
    )
    driver.admit(pod)
    held = [driver.held(container=name) for name in "scd"]
    assert len(set().union(*held)) == 3
    assert driver.held(container="s") < driver.held(container="i")


REBOOTED = "no healthy devices present; cannot allocate unhealthy devices example.com/r"


def _unregistered(driver: Driver) -> None:
    driver.devices.allocated[R] = set()
    del driver.devices.healthy[R]


def _disconnected(driver: Driver) -> None:
    driver.devices.disconnected(R, 0.0)


def _unhealthy_holding(driver: Driver) -> None:
    driver.admit(a_pod(main(r=2)))
    held = driver.held()
    driver.devices.advertised(R, [Device(f"r{i}", f"r{i}" not in held) for i in range(6)])


def _changed_request(driver: Driver) -> None:
    driver.admit(a_pod(main(r=1)))


def _refused_preference(driver: Driver) -> None:
    driver.prefer = CallFailed("rpc error: code = Internal desc = boom")


def _refused_allocation(driver: Driver) -> None:
    driver.answer = CallFailed("rpc error: code = FailedPrecondition desc = no")


def _empty_answer(driver: Driver) -> None:
    driver.answer = None


def _too_few(driver: Driver) -> None:
    driver.admit(a_pod(main(r=5), uid="other"))


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (_unregistered, "cannot allocate unregistered device example.com/r"),
        (_disconnected, REBOOTED),
        (
            _unhealthy_holding,
            (
                "previously allocated devices are no longer healthy; cannot allocate "
                "unhealthy devices example.com/r"
            ),
        ),
        (
            _changed_request,
            'pod "u1" container "c" changed request for resource "example.com/r" from 1 to 2',
        ),
        (
            _refused_preference,
            (
                "device plugin GetPreferredAllocation rpc failed with err: "
                "rpc error: code = Internal desc = boom"
            ),
        ),
        (_refused_allocation, "rpc error: code = FailedPrecondition desc = no"),
        (_empty_answer, "no containers return in allocation response"),
        (
            _too_few,
            "requested number of devices unavailable for example.com/r. Requested: 2, Available: 1",
        ),
    ],
)
def test_a_refusal_is_worded_as_the_kubelet_words_it(
    prepare: Callable[[Driver], None], text: str
) -> None:
    driver = Driver(make())
    prepare(driver)
    with pytest.raises(AdmissionFailure) as caught:
        driver.admit(a_pod(main(r=2)))
    assert str(caught.value) == text


def test_a_list_while_a_call_is_in_flight_makes_the_devices_look_free_if_a_pod_just_ended() -> None:
    """K15."""
    driver = Driver(make())
    driver.admit(a_pod(main(r=1), uid="ends"))
    driver.active.add("u1")
    pod = a_pod(main(r=2))
    steps = driver.devices.allocate(pod.uid, pod.containers[0], driver.alive)
    next(steps)
    in_flight = steps.send(())
    assert isinstance(in_flight, AllocateCall)
    driver.active.remove("ends")
    driver.devices.update_allocated(driver.alive())  # what List does
    assert not driver.devices.allocated.get(R)
    steps.send(Answer())
    assert driver.held() == set(in_flight.ids)
    driver.admit(a_pod(main(r=6), uid="u2"))
    assert driver.held("u2") > driver.held("u1")


def test_prestart_names_the_containers_devices() -> None:
    driver = Driver(make())
    driver.admit(a_pod(main(r=3)))
    assert set(driver.devices.devices_to_prestart("u1", "c", R) or ()) == driver.held()


def test_prestart_is_skipped_when_the_plugin_does_not_want_it() -> None:
    driver = Driver(make())
    driver.devices.connected(R, Options())
    assert driver.devices.devices_to_prestart("u1", "c", R) is None


def test_prestart_of_a_container_without_devices_fails() -> None:
    with pytest.raises(StartFailure) as caught:
        make().devices_to_prestart("u1", "c", R)
    assert str(caught.value) == (
        "no devices found allocated in local cache for pod u1, container c, resource example.com/r"
    )
    with pytest.raises(StartFailure, match="endpoint not found in cache"):
        make().devices_to_prestart("u1", "c", "example.com/none")


Limits: TypeAlias = dict[str, int]
Shape: TypeAlias = tuple[list[tuple[ContainerKind, Limits]], list[Limits]]
counts_of = st.fixed_dictionaries({}, optional={R: st.integers(1, 4), S: st.integers(1, 4)})
containers_of = st.tuples(
    st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), counts_of), max_size=3),
    st.lists(counts_of, min_size=1, max_size=3),
)


@settings(deadline=None, max_examples=share(60))
@given(
    st.lists(st.tuples(containers_of, st.booleans(), st.integers(0, 5)), max_size=12),
    st.integers(0, 2**16),
)
def test_no_device_is_ever_in_two_live_pods_and_holdings_match_requests(
    pods: list[tuple[Shape, bool, int]], seed: int
) -> None:
    """Without K15's race: random pods, random deaths between them, plugins that die too."""
    driver = Driver(make(14, resources=(R, S), seed=seed))
    chance = Random(seed)
    for index, ((inits, mains), deadly, victim) in enumerate(pods):
        pod = a_pod(
            *(
                Container(f"{kind.value}{n}", kind, limits)
                for n, (kind, limits) in enumerate(inits)
            ),
            *(Container(f"c{n}", MAIN, limits) for n, limits in enumerate(mains)),
            uid=f"u{index}",
        )
        driver.prefer = chance.sample([f"r{n}" for n in range(14)], 3)
        try:
            driver.admit(pod)
        except AdmissionFailure:
            driver.active.discard(pod.uid)
        else:
            for container in pod.containers:
                for resource, count in container.limits.items():
                    assert len(driver.held(pod.uid, container.name, resource)) == count
        if deadly and driver.active:
            driver.active.discard(sorted(driver.active)[victim % len(driver.active)])
        driver.devices.update_allocated(driver.active)
        owners = Counter(
            (resource, id_)
            for holdings in driver.devices.pods.values()
            for resource in (R, S)
            for id_ in {
                one for held in holdings.values() if resource in held for one in held[resource].ids
            }
        )
        assert set(owners.values()) <= {1}
        for uid, holdings in driver.devices.pods.items():
            assert uid in driver.active
            lasting = Counter(
                (resource, id_)
                for name, held in holdings.items()
                if not name.startswith("init")
                for resource in held
                for id_ in held[resource].ids
            )
            assert set(lasting.values()) <= {1}


def test_a_pod_needs_the_larger_of_start_up_and_running() -> None:
    pod = a_pod(
        Container("i", INIT, {R: 5}),
        Container("s", SIDECAR, {R: 2}),
        Container("j", INIT, {R: 4}),
        main("c", r=3),
    )
    assert requests_of(pod) == {R: 6}  # sidecar 2 and init j 4
