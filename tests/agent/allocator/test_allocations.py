import pytest

from agent.allocator.interfaces import HeldSlots
from agent.allocator.slot_holdings import allocations_of
from agent.holdings.annotation import needs_annotation
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import CORE, INIT, MEMORY, cases, container, device_table, ids, view

NODE = device_table()
CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
SERVED: HeldSlots = {CORE: CORES, MEMORY: BLOCKS}
GOT = Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)


def _allocations(
    pod: PodInfo,
    held: dict[str, HeldSlots],
    *,
    cores: Evidence = Evidence.WITNESS,
    memory: Evidence = Evidence.WITNESS,
) -> dict[str, Allocation] | None:
    def evidence(_container: str, resource: Resource) -> Evidence:
        return cores if resource is CORE else memory

    return allocations_of(held, NODE, pod, evidence=evidence)


def test_a_pod_is_complete_if_all_its_containers_have_what_they_request() -> None:
    pod = view("p", container("c0", 50, 4), container("c1", 100, 0))
    assert _allocations(pod, {"c0": SERVED, "c1": {CORE: ids("GPU-1", range(100))}}) == {
        "c0": GOT,
        "c1": Allocation(("GPU-1",), 100, 0, Evidence.WITNESS),
    }


@pytest.mark.parametrize(
    ("cores", "memory", "expected_evidence"),
    [
        (Evidence.TICKET, Evidence.RECORD, Evidence.RECORD),
        (Evidence.RECORD, Evidence.WITNESS, Evidence.WITNESS),
        (Evidence.ORDER, Evidence.WITNESS, Evidence.ORDER),
        (Evidence.TICKET, Evidence.TICKET, Evidence.TICKET),
    ],
)
def test_the_weaker_evidence_of_the_two_is_recorded(
    cores: Evidence, memory: Evidence, expected_evidence: Evidence
) -> None:
    found = _allocations(view("p"), {"c0": SERVED}, cores=cores, memory=memory)
    assert found is not None
    assert found["c0"].evidence is expected_evidence


INIT_AFTER = view("p", container("c0", kind=INIT), container("init", 10, 1, kind=INIT))
INIT_BEFORE = view("p", container("init", 10, 1, kind=INIT), container("c0"))


@cases(
    "pod, held, found",
    {
        "cores are missing": (view("p"), {"c0": {MEMORY: BLOCKS}}, None),
        "memory is missing": (view("p"), {"c0": {CORE: CORES}}, None),
        "another is missing": (view("p", container("c0"), container("c1")), {"c0": SERVED}, None),
        "an init that the checkpoint did not have": (INIT_BEFORE, {"c0": SERVED}, {"c0": GOT}),
        "nothing after it has anything": (INIT_BEFORE, {}, None),
        "an init still to come": (INIT_AFTER, {"c0": SERVED}, None),
        "it requests nothing": (view("p", container("c0", 0, 0)), {}, None),
    },
)
def test_a_pod_is_complete_without_a_finished_init_container_but_no_other(
    pod: PodInfo, held: dict[str, HeldSlots], found: dict[str, Allocation] | None
) -> None:
    assert _allocations(pod, held) == found


# --- whether it must be written -------------------------------------------------------

ORDER, RECORD, WITNESS = Evidence.ORDER, Evidence.RECORD, Evidence.WITNESS


def _got(evidence: Evidence = WITNESS, *cards: str, cores: int = 50) -> Allocation:
    return Allocation(cards or ("GPU-0",), cores, 4, evidence)


@pytest.mark.parametrize(
    ("found", "annotated", "needed"),
    [
        ({}, {"c0": _got()}, False),
        ({"c0": _got()}, {}, True),
        ({"c0": _got()}, {"c0": _got(), "c1": _got()}, False),
        ({"c0": _got(), "c1": _got()}, {"c0": _got()}, True),
        ({"c0": _got(WITNESS, "GPU-1")}, {"c0": _got()}, True),
        ({"c0": _got(cores=60)}, {"c0": _got()}, True),
        ({"c0": _got(RECORD)}, {"c0": _got(WITNESS)}, False),
        ({"c0": _got(RECORD)}, {"c0": _got(ORDER)}, True),
        ({"c0": _got(ORDER)}, {"c0": _got(RECORD)}, False),
        ({"c0": _got(ORDER)}, {"c0": _got(ORDER)}, False),
        ({"c0": _got(), "c1": _got(RECORD)}, {"c0": _got(), "c1": _got(ORDER)}, True),
    ],
)
def test_an_allocation_already_annotated_is_not_written_again(
    found: dict[str, Allocation], annotated: dict[str, Allocation], needed: bool
) -> None:
    """Nor is one with other evidence, except the proof of a guess."""
    assert needs_annotation(found, annotated) is needed
