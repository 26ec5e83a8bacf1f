from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.allocator.interfaces import HeldSlots
from agent.allocator.placer import Placement, Placer, at_least, pick
from agent.allocator.search_input import Assumptions, PlacementRequest
from agent.allocator.slots import Slot, summarize
from agent.allocator.snapshot import AllocationSnapshot
from agent.errors import PlacementError
from agent.holdings.holding import ContainerRef
from contract.allocation import Allocation, Evidence
from contract.demand import Demand
from contract.resource import Resource
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import ContainerPlan, Plan
from placement.topology import Links
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    cases,
    container,
    device_table,
    every_id,
    ids,
    pods_of,
    snapshot_of,
    snapshot_pod,
    view,
)

NODE = device_table(cards=3)


def _placement(
    pod: PodInfo,
    resource: Resource,
    *,
    name: str = "",
    snapshot: AllocationSnapshot | None = None,
    available: Sequence[str] | None = None,
    must: Sequence[Slot] = (),
    unhealthy: str = "",
    **given: Any,
) -> Placement:
    """Place a container, by default the last; the kubelet offers everything by default."""
    requested = (pod.demand.of(name) if name else None) or pod.demand.containers[-1]
    request = PlacementRequest(
        ContainerRef(pod.id, requested.name),
        requested,
        pod.demand,
        resource,
        Policy.BINPACK,
        frozenset(every_id(NODE, resource) if available is None else available),
        must,
        **given,
    )
    links, withheld = Links(NODE.inventory), {unhealthy: "unhealthy (Xid 79)"}
    placer = Placer(table=NODE, links=links, withheld=lambda uuid: withheld.get(uuid, ""))
    return placer.place(request, snapshot or snapshot_of())


def _others(**held: HeldSlots) -> AllocationSnapshot:
    return snapshot_of(snapshot_pod(view("q", *map(container, held)), **held))


def _planned(*cards: int) -> Plan:
    return {"c0": ContainerPlan(cards)}


def _slots(card: int, device_ids: Iterable[int]) -> list[Slot]:
    return [Slot(f"GPU-{card}", slot) for slot in device_ids]


# --- one container -------------------------------------------------------------------

POD = view("p")
WITH_INIT = view("p", container("init", 2, 1, kind=INIT), container("c0", 4, 1))
BEFORE_MORE = view("p", container("init", 10, 1, kind=INIT), container("c0", 80, 4))
HALF = _others(c0={CORE: ids("GPU-0", range(50))})
SOME = _others(c0={CORE: ids("GPU-0", range(10))})  # binpack would take this card
HAS_CORES, HAS_MEMORY, INIT_HAD, INIT_HAD_CARD = (
    snapshot_of(snapshot_pod(pod, **held), *_others(c0={CORE: ids("GPU-1", range(30))}).pods)
    for pod, held in (
        (POD, {"c0": {CORE: ids("GPU-2", range(50))}}),
        (POD, {"c0": {MEMORY: ids("GPU-2", range(4))}}),
        (WITH_INIT, {"init": {CORE: ids("GPU-2", range(5, 7))}}),
        (WITH_INIT, {"init": {CORE: ids("GPU-2", range(100))}}),
    )
)
ALL_CARDS = {f"c{index}": {MEMORY: ids(f"GPU-{index}", range(8))} for index in range(3)}
LITTLE_MEMORY = _others(**ALL_CARDS)
FEW = [*ids("GPU-0", range(10)), *ids("GPU-2", range(40, 90)), "GPU-9::0", "nonsense"]


def _withheld(snapshot: AllocationSnapshot, *cards: int) -> dict[str, Any]:
    withheld = {MEMORY: {f"GPU-{card}": 10 for card in cards}}
    return {"snapshot": snapshot, "assumptions": Assumptions(withheld=withheld)}


BEFORE = {"name": "init", "snapshot": HALF}
CONTRADICTED = {"snapshot": HAS_CORES, "plan": _planned(0)}
REUSABLE = {"snapshot": INIT_HAD, "must": _slots(2, [5, 6])}
DOUBTFUL = {"snapshot": LITTLE_MEMORY, "assumptions": Assumptions(doubtful={MEMORY: {"GPU-2": 8}})}


@cases(
    "pod, resource, given, device_ids",
    {
        "the lowest of the fullest card": (POD, CORE, {"snapshot": SOME}, "GPU-0::10-59"),
        "that fits": (BEFORE_MORE, CORE, {"snapshot": HALF}, "GPU-1::0-79"),
        "memory follows cores": (POD, MEMORY, {"snapshot": HAS_CORES}, "GPU-2::0-3"),
        "cores follow memory": (POD, CORE, {"snapshot": HAS_MEMORY}, "GPU-2::0-49"),
        "a plan that contradicts what is held": (POD, MEMORY, CONTRADICTED, "GPU-2::0-3"),
        "slots that are offered and exist": (POD, CORE, {"available": FEW}, "GPU-2::40-89"),
        "no unhealthy card": (POD, CORE, {"unhealthy": "GPU-0"}, "GPU-1::0-49"),
        "reusable slots decide the card (K7)": (WITH_INIT, CORE, REUSABLE, "GPU-2::0-1,5-6"),
        "later reusable slots, too": (WITH_INIT, MEMORY, {"snapshot": INIT_HAD_CARD}, "GPU-2::0"),
        "an init: where later containers fit": (BEFORE_MORE, CORE, BEFORE, "GPU-1::0-9"),
        "preferably where nothing is withheld": (POD, CORE, _withheld(SOME, 0), "GPU-1::0-49"),
        "else where it is only assumed": (POD, CORE, _withheld(SOME, 0, 1, 2), "GPU-0::10-59"),
        "else slots of a pod that may have ended": (POD, CORE, DOUBTFUL, "GPU-2::0-49"),
    },
)
def test_a_container_gets_slots(
    pod: PodInfo, resource: Resource, given: dict[str, Any], device_ids: str
) -> None:
    placement = _placement(pod, resource, **given)
    assert summarize([str(each) for each in placement.slots]) == device_ids
    assert placement.cards == (device_ids[:5],)


def _claimed(name: str, *cores: int, terminal: bool = False) -> AllocationSnapshot:
    """Return a snapshot without slots; a pod has cores and a block of each card by a claim."""
    containers = [container(f"c{at}", each, 1) for at, each in enumerate(cores)]
    info = replace(
        view(name, *containers, terminal=terminal),
        annotated={
            f"c{at}": Allocation((f"GPU-{at}",), each, 1, Evidence.CLAIM)
            for at, each in enumerate(cores)
        },
    )
    return replace(snapshot_of(), known=pods_of(info))


@cases(
    "snapshot, cards",
    {
        "counts on its cards": (_claimed("q", 60, 50), ("GPU-1",)),
        "until it has ended": (_claimed("q", 60, 50, terminal=True), ("GPU-0",)),
        "not for the pod itself": (_claimed("p", 60, 60, 60), ("GPU-0",)),
    },
)
def test_a_claim_from_before_the_node_had_a_device_plugin(
    snapshot: AllocationSnapshot, cards: tuple[str, ...]
) -> None:
    """The node was not drained: neither ``List`` nor the checkpoint shows it."""
    for resource in Resource:
        assert _placement(POD, resource, snapshot=snapshot).cards == cards
    whole = view("p", container("c0", 100, 0))
    if "GPU-0" not in cards:
        assert _placement(whole, CORE, snapshot=snapshot).cards == ("GPU-2",)
    with pytest.raises(PlacementError, match="3 cards: 40 of 50 cores free"):
        _placement(POD, CORE, snapshot=_claimed("q", 60, 60, 60))


FULL = _others(c0={CORE: ids("GPU-0", range(60))}, c1={MEMORY: ids("GPU-1", range(7))})
NOWHERE = {"snapshot": HAS_CORES, "available": list(ids("GPU-1", range(10)))}


@cases(
    "resource, given, why",
    {
        "for each card": (
            *(CORE, {"snapshot": FULL, "unhealthy": "GPU-2"}),
            "GPU-0: 40 of 50 cores; GPU-1: 3 of 4 memory blocks; GPU-2: unhealthy (Xid 79)",
        ),
        "it cannot follow its cores": (MEMORY, NOWHERE, "GPU-2: 0 of 4 memory blocks"),
        "by the snapshot, whatever is withheld": (
            *(CORE, _withheld(LITTLE_MEMORY, 0)),
            "3 cards: 2 of 4 memory blocks",
        ),
    },
)
def test_a_refusal_has_the_reason_that_nothing_fits(
    resource: Resource, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        _placement(POD, resource, **given)
    requested, _, found = str(caught.value).partition(": ")
    assert requested == "no card fits 50 cores and 4 memory blocks"
    assert found.replace(" free", "") == why


@pytest.mark.parametrize(
    ("cores", "memory", "cards", "needed"),
    [
        (1, 10, 3, 1),
        (1, 11, 3, 200),
        (1, 21, 3, 300),
        (100, 99, 3, 100),
        (1, 11, 0, 1),
    ],
)
def test_a_request_for_more_memory_than_a_card_has_becomes_whole_cards(
    cores: int, memory: int, cards: int, needed: int
) -> None:
    requested = container("c0", cores, memory)
    found = at_least(requested, device_table(cards=cards))
    assert (found.demand.cores, found.demand.memory) == (needed, memory)
    assert (found is requested) is (needed == cores)


# --- slots of the cards --------------------------------------------------------------

SHARE, WHOLE = Demand(5, 4), Demand(200, 5)


@cases(
    "demand, resource, cards, must, chosen",
    {
        "the lowest": (SHARE, CORE, [1], [], "GPU-1::0-4"),
        "the lowest blocks": (SHARE, MEMORY, [1], [], "GPU-1::0-3"),
        "whole cards": (WHOLE, CORE, [0, 2], [], "GPU-0::0-99; GPU-2::0-99"),
        "their memory is distributed": (WHOLE, MEMORY, [0, 2], [], "GPU-0::0-2; GPU-2::0-1"),
        "included slots count": (SHARE, CORE, [0], [8, 9], "GPU-0::0-2,8-9"),
        "on their card": (Demand(200, 4), MEMORY, [0, 1], [8, 9], "GPU-0::8-9; GPU-1::0-1"),
        "and are all of it": (Demand(200, 4), MEMORY, [0, 1], [0, 1, 2], "GPU-0::0-2; GPU-1::0"),
        "even if they are more": (Demand(50, 2), MEMORY, [0], [0, 1, 2], "GPU-0::0-2"),
    },
)
def test_slots_are_picked(
    demand: Demand, resource: Resource, cards: list[int], must: list[int], chosen: str
) -> None:
    free = {f"GPU-{card}": _slots(card, range(100)) for card in range(3)}
    taken = _slots(0, must)
    found = pick(demand, resource, [f"GPU-{n}" for n in cards], free=free, must=taken)
    assert found[: len(must)] == taken, "included slots come first"
    assert summarize([str(each) for each in found]) == chosen


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        pick(WHOLE, MEMORY, ["GPU-0", "GPU-1"], free={"GPU-0": _slots(0, range(9))})
    assert str(caught.value) == ("5 memory blocks requested on GPU-0, GPU-1, but only 3 free there")
