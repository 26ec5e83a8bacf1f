"""The state of the device manager, without any I/O."""

from collections.abc import Collection, Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.resource import Resource
from contract.reusable import most_at_once, reusable_ids
from simulator.kubelet import devices as state
from simulator.kubelet.devices import AllocateStep, Devices, PluginOptions, PreferStep, Step
from simulator.kubelet.numa import Device, NumaHint, no_hint
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.responses import PluginResponse

R = "example.com/r"


def make(
    count: int = 6,
    *,
    nodes: Mapping[str, tuple[int, ...]] | None = None,
    hint: NumaHint = no_hint,
) -> Devices:
    devices = Devices(random=Random(0), numa_hint=hint)
    devices.sources_ready = True
    devices.connected(R, PluginOptions(pre_start=True, preferred=True))
    ids = [f"r{index}" for index in range(count)]
    devices.advertised(R, [Device(id_, True, (nodes or {}).get(id_, ())) for id_ in ids])
    return devices


def a_pod(*containers: Container, uid: str = "u1") -> Pod:
    return Pod(uid, "default", uid, "2026", containers)


def main(name: str = "c", **limits: int) -> Container:
    return Container(
        name, ContainerKind.MAIN, {f"example.com/{each}": count for each, count in limits.items()}
    )


class Driver:
    """Handles steps as a plugin does, and records them."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.active: set[str] = set()
        self.steps: list[Step] = []

    def alive(self) -> Collection[str]:
        return self.active

    def admit(self, pod: Pod) -> list[Step]:
        self.active.add(pod.uid)
        for container in pod.containers:
            state.drive(self.devices.allocate(pod.uid, container, self.alive), self._do)
        return self.steps

    def _do(self, step: Step) -> state.Reply:
        self.steps.append(step)
        if isinstance(step, PreferStep):
            return ()
        return PluginResponse() if isinstance(step, AllocateStep) else None

    def held(self, uid: str = "u1", container: str = "c", resource: str = R) -> set[str]:
        holding = self.devices.pods.get(uid, {}).get(container, {}).get(resource)
        return set() if holding is None else set(holding.ids)


def calls(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_without_alignment_the_plugin_is_called_even_for_an_exact_fit() -> None:
    """As in the source of 1.36: without alignment there is no early return."""
    assert calls(Driver(make(3)).admit(a_pod(main(r=3))))[0] == "PreferStep"


NUMA = {"r0": (0,), "r1": (0,), "r2": (1,), "r3": (1,), "r4": (1,)}


def test_with_too_few_aligned_ones_these_must_be_included_in_the_preference() -> None:
    driver = Driver(make(6, nodes=NUMA, hint=lambda uid, name: {0}))
    [prefer, allocate, _] = driver.admit(a_pod(main(r=3)))
    assert isinstance(prefer, PreferStep)
    assert set(prefer.must_include) == {"r0", "r1"}
    assert len(prefer.available) == 6
    assert isinstance(allocate, AllocateStep)
    # the rest from devices on other nodes before those on none
    assert set(allocate.ids) - {"r0", "r1"} < {"r2", "r3", "r4"}


@given(
    st.lists(st.tuples(st.sampled_from(ContainerKind), st.integers(1, 9)), min_size=1, max_size=6)
)
def test_reusable_devices_are_those_that_the_contract_computes(
    requests: list[tuple[ContainerKind, int]],
) -> None:
    """K7: the kubelet keeps its own account of it, by device ID."""
    driver = Driver(make(60))
    limits = [(f"c{at}", kind, count) for at, (kind, count) in enumerate(requests)]
    driver.admit(a_pod(*(Container(name, kind, {R: count}) for name, kind, count in limits)))
    held = [(kind is ContainerKind.INIT, driver.held(container=name)) for name, kind, _ in limits]
    assert reusable_ids(held) == set(driver.devices.reusable[R])
    demand = PodDemand(
        tuple(ContainerDemand(name, kind, 0, Demand(0, count)) for name, kind, count in limits)
    )
    all_held = set[str]().union(*(ids for _, ids in held))
    assert most_at_once(demand, Resource.MEMORY) == len(all_held)
