"""The state of the device manager, without any I/O."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.resource import Resource
from contract.reusable import most_at_once, reusable_ids
from simulator.kubelet.devices import (
    AllocateStep,
    Devices,
    PluginOptions,
    PreferStep,
    Reply,
    Step,
    drive,
)
from simulator.kubelet.numa import Device, NumaHint, no_hint
from simulator.kubelet.pods import Container
from simulator.kubelet.responses import PluginResponse

R = "example.com/r"


def make(*devices: Device, hint: NumaHint = no_hint) -> Devices:
    made = Devices(random=Random(0), numa_hint=hint)
    made.sources_ready = True
    made.connected(R, PluginOptions(pre_start=True, preferred=True))
    made.advertised(R, devices)
    return made


def admit(devices: Devices, *requests: tuple[ContainerKind, int]) -> list[Step]:
    """Admit a pod of containers ``c0``, ... with a plugin that prefers nothing."""
    steps: list[Step] = []

    def do(step: Step) -> Reply:
        steps.append(step)
        if isinstance(step, PreferStep):
            return ()
        return PluginResponse() if isinstance(step, AllocateStep) else None

    for at, (kind, count) in enumerate(requests):
        container = Container(f"c{at}", kind, {R: count})
        drive(devices.allocate("u1", container, lambda: {"u1"}), do)
    return steps


def test_without_alignment_the_plugin_is_called_even_for_an_exact_fit() -> None:
    """As in the source of 1.36: without alignment there is no early return."""
    first, *_ = admit(make(*map(Device, ("r0", "r1", "r2"))), (ContainerKind.MAIN, 3))
    assert isinstance(first, PreferStep)


def test_with_too_few_aligned_ones_these_must_be_included_in_the_preference() -> None:
    nodes = [(0,), (0,), (1,), (1,), (1,), ()]
    listed = [Device(f"r{at}", nodes=node) for at, node in enumerate(nodes)]
    devices = make(*listed, hint=lambda uid, name: {0})
    [prefer, allocate, _] = admit(devices, (ContainerKind.MAIN, 3))
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
    devices = make(*(Device(f"r{at}") for at in range(60)))
    admit(devices, *requests)
    held = [
        (kind is ContainerKind.INIT, frozenset(devices.pods["u1"][f"c{at}"][R].ids))
        for at, (kind, _) in enumerate(requests)
    ]
    assert reusable_ids(held) == set(devices.reusable[R])
    demand = PodDemand(
        tuple(
            ContainerDemand(f"c{at}", kind, 0, Demand(0, count))
            for at, (kind, count) in enumerate(requests)
        )
    )
    all_held = set[str]().union(*(ids for _, ids in held))
    assert most_at_once(demand, Resource.MEMORY) == len(all_held)
