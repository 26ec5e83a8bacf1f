"""The state of the device manager, without any I/O."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.demand import ContainerKind
from simulator.kubelet import devices as state
from simulator.kubelet.answers import Answer
from simulator.kubelet.devices import AllocateCall, Devices, Options, PreferCall, SaveBooks, Step
from simulator.kubelet.errors import AdmissionFailure, CallFailed
from simulator.kubelet.numa import Device, NumaHint, no_hint
from simulator.kubelet.pods import Container, Pod
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
        state.drive(self.devices.allocate(pod.uid, container, self.alive), self._do)

    def _do(self, step: Step) -> state.Reply:
        self.steps.append(step)
        if isinstance(step, SaveBooks):
            return None
        answer = tuple(self.prefer) if isinstance(self.prefer, list) else self.prefer
        reply = answer if isinstance(step, PreferCall) else self.answer
        if isinstance(reply, CallFailed):
            raise reply
        return reply

    def held(self, uid: str = "u1", container: str = "c", resource: str = R) -> set[str]:
        holding = self.devices.pods.get(uid, {}).get(container, {}).get(resource)
        return set() if holding is None else set(holding.ids)


def calls(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_without_alignment_the_plugin_is_asked_even_when_exactly_enough_are_free() -> None:
    """As the source of 1.36 has it: nothing is aligned, so the early return never comes."""
    assert calls(Driver(make(3)).admit(a_pod(main(r=3))))[0] == "PreferCall"


NUMA = {"r0": (0,), "r1": (0,), "r2": (1,), "r3": (1,), "r4": (1,)}


def test_with_too_few_aligned_ones_these_must_be_included_in_the_preference() -> None:
    driver = Driver(make(6, nodes=NUMA, hint=lambda uid, name: {0}))
    [prefer, allocate, _] = driver.admit(a_pod(main(r=3)))
    assert isinstance(prefer, PreferCall)
    assert set(prefer.must_include) == {"r0", "r1"}
    assert len(prefer.available) == 6
    assert isinstance(allocate, AllocateCall)
    # the rest from devices on other nodes before those on none
    assert set(allocate.ids) - {"r0", "r1"} < {"r2", "r3", "r4"}


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
