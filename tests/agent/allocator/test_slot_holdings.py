"""Holdings of cards, counted from the snapshot, and the allocations of complete pods."""

from dataclasses import replace

import pytest

from agent.allocator.interfaces import HeldSlots
from agent.allocator.slot_holdings import allocations_of, key_of, read_holdings, starting
from agent.holdings.annotation import needs_annotation
from agent.holdings.holding import CardTotals, HeldShare, NodeHoldings
from contract.allocation import Allocation, Evidence
from contract.demand import Demand
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import (
    BLOCK,
    CORE,
    INIT,
    MEMORY,
    cases,
    container,
    device_table,
    ids,
    snapshot_of,
    snapshot_pod,
    view,
)

SHARE = {CORE: ids("GPU-0", range(30)), MEMORY: ids("GPU-0", range(4))}
WHOLE = {CORE: ids("GPU-1", range(100))}


def _holdings(*pods: tuple[PodInfo, dict[str, HeldSlots]]) -> NodeHoldings:
    """Count what these pods hold on two cards of ten blocks."""
    snapshot = snapshot_of(*(snapshot_pod(pod, **held) for pod, held in pods))
    return read_holdings(snapshot, device_table())


def _shares(found: NodeHoldings) -> dict[str, dict[str, HeldShare]]:
    return {
        f"{each.ref.pod.name}/{each.ref.container}": found.shares(each) for each in found.current
    }


def test_shares_and_whole_cards_are_counted_by_container_and_by_card() -> None:
    limited = view("a", container("c0", 30, 4))
    limited = replace(limited, wishes=replace(limited.wishes, core_limit=60))
    found = _holdings((limited, {"c0": SHARE}), (view("b", container("c0", 100, 0)), {"c0": WHOLE}))
    assert _shares(found) == {
        "a/c0": {"GPU-0": HeldShare(30, 4 * BLOCK)},
        "b/c0": {"GPU-1": HeldShare(100, 10 * BLOCK)},
    }
    assert found.totals == {
        "GPU-0": CardTotals(30, 70, 4 * BLOCK, 6 * BLOCK),
        "GPU-1": CardTotals(100, 0, 10 * BLOCK, 0),
    }
    one, other = found.holders
    assert (one.runtime_uid, one.core_limit) == ("u-a", 60)
    assert (other.runtime_uid, other.core_limit) == ("u-b", None)


def test_a_share_of_two_cards_is_counted_on_each_and_is_no_whole_card() -> None:
    """Although it has 100 cores."""
    halves = {
        CORE: ids("GPU-0", range(50)) | ids("GPU-1", range(50)),
        MEMORY: ids("GPU-0", range(4)) | ids("GPU-1", range(4)),
    }
    pod = view("a", replace(container("c0"), demand=Demand(100, 8, 2)))
    found = _holdings((pod, {"c0": halves}))
    assert _shares(found) == {
        "a/c0": {"GPU-0": HeldShare(50, 4 * BLOCK), "GPU-1": HeldShare(50, 4 * BLOCK)}
    }
    assert set(found.totals.values()) == {CardTotals(50, 50, 4 * BLOCK, 6 * BLOCK)}


@pytest.mark.parametrize(("running", "shown"), [(False, {"a/i", "a/c0"}), (True, {"a/c0"})])
def test_an_init_container_is_shown_until_its_pod_runs(running: bool, shown: set[str]) -> None:
    """Its later containers keep its slots (fact K7)."""
    pod = view("a", container("i", 30, 4, kind=INIT), container("c0", 30, 4))
    found = _holdings((replace(pod, running=running), {"i": SHARE, "c0": SHARE}))
    assert set(_shares(found)) == shown
    assert found.totals["GPU-0"] == CardTotals(30, 70, 4 * BLOCK, 6 * BLOCK)


def test_slots_of_a_missing_card_are_held_of_no_other() -> None:
    pod = view("a", container("c0", 30, 4))
    held = {CORE: ids("GPU-9", range(30)), MEMORY: ids("GPU-9", range(4)) | {"of-another-plugin"}}
    found = _holdings((pod, {"c0": held}))
    assert _shares(found) == {"a/c0": {"GPU-9": HeldShare(30, 4 * BLOCK)}}
    assert {each.cores_held for each in found.totals.values()} == {0}
    assert "GPU-9" not in found.totals


def test_the_key_depends_on_the_slots_in_any_order() -> None:
    assert key_of(["GPU-0::1", "GPU-0::0"]) == key_of(("GPU-0::0", "GPU-0::1"))
    assert key_of(["GPU-0::0", "GPU-0::1"]) == "6cf2ebeac19f8c7108fe"
    assert len(key_of(SHARE[CORE])) == 20
    assert key_of(SHARE[CORE]) != key_of(WHOLE[CORE])
    assert key_of(()) == "", "memory alone has no files"


FOREIGN = {CORE: frozenset(f"tencent.com/vcuda-core-{n}" for n in range(30)), MEMORY: SHARE[MEMORY]}


@pytest.mark.parametrize("held", [FOREIGN, {**SHARE, MEMORY: ids("GPU-0", (0, 1, 2, 99))}])
def test_no_allocation_is_written_of_devices_that_cannot_all_be_read(held: HeldSlots) -> None:
    """Those of gpu-manager, or of larger cards: the node was not drained."""
    pod, table = view("a", container("c0", 30, 4)), device_table()
    evidence = Evidence.RECORD
    assert allocations_of({"c0": held}, table, pod, evidence=lambda *_: evidence) is None
    assert allocations_of({"c0": SHARE}, table, pod, evidence=lambda *_: evidence) is not None
    assert starting(pod.id, pod, {"c0": held}, held[CORE], table) == []
    assert _holdings((pod, {"c0": held})).find("u-a", "c0") is None


# --- allocations of complete pods -----------------------------------------------------

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
