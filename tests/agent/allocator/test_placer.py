from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.free_places import free_places
from agent.allocator.model.containers import ContainerRef, Places
from agent.allocator.model.grant import translate
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.tickets import DeviceTable, Ticket, per_card, summarize
from agent.allocator.placement_request import Assumptions, PlacementRequest
from agent.allocator.placer import Placement, Placer, at_least, pick
from agent.allocator.record import Record
from agent.errors import PlacementError
from contract.demand import ContainerDemand, Demand
from contract.resource import Resource, count_of
from placement.scoring import Policy
from placement.search import Assignment, Plan
from placement.topology import Links
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    SIDECAR,
    cases,
    container,
    device_table,
    every_id,
    ids,
    patient,
    record_of,
    recorded,
    view,
)
from tests.examples import share

NODE = device_table(cards=3)


def _placement(
    pod: PodView,
    resource: Resource,
    *,
    name: str = "",
    record: Record | None = None,
    node: DeviceTable = NODE,
    available: Sequence[str] | None = None,
    must: Sequence[Ticket] = (),
    ill: str = "",
    policy: Policy = Policy.BINPACK,
    **given: Any,
) -> Placement:
    """Place a container, by default the last, where the kubelet offers everything unless told."""
    asked = (pod.demand.of(name) if name else None) or pod.demand.containers[-1]
    request = PlacementRequest(
        ContainerRef(pod.id, asked.name),
        asked,
        pod.demand,
        resource,
        policy,
        frozenset(every_id(node, resource) if available is None else available),
        must,
        **given,
    )
    links, unhealthy = Links(node.inventory), {ill: "Xid 79"}
    placer = Placer(table=node, links=links, unhealthy=lambda uuid: unhealthy.get(uuid, ""))
    return placer.place(request, record or record_of())


def _others(**held: Places) -> Record:
    """A record in which containers of another pod hold something."""
    return record_of(recorded(view("q", *map(container, held)), **held))


def _planned(*cards: str) -> Plan:
    """What an earlier call has planned."""
    return {"c0": Assignment(cards, {})}


def _tickets(card: int, places: Iterable[int]) -> list[Ticket]:
    return [Ticket(f"GPU-{card}", place) for place in places]


# --- one container -------------------------------------------------------------------

POD = view("p")
WITH_INIT = view("p", container("init", 2, 1, kind=INIT), container("c0", 4, 1))
BEFORE_MORE = view("p", container("init", 10, 1, kind=INIT), container("c0", 80, 4))
HALF = _others(c0={CORE: ids("GPU-0", range(50))})
SOME = _others(c0={CORE: ids("GPU-0", range(10))})  # binpack would take this card
HAS_CORES, HAS_MEMORY, INIT_HAD, INIT_HAD_CARD = (
    record_of(recorded(pod, **held), *_others(c0={CORE: ids("GPU-1", range(30))}).pods)
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


def _withheld(record: Record, *cards: int) -> dict[str, Any]:
    withheld = {MEMORY: {f"GPU-{card}": 10 for card in cards}}
    return {"record": record, "assumptions": Assumptions(withheld=withheld)}


BEFORE = {"name": "init", "record": HALF}
CONTRADICTED = {"record": HAS_CORES, "plan": _planned("GPU-0")}
HANDED_ON = {"record": INIT_HAD, "must": _tickets(2, [5, 6])}
DOUBTFUL = {"record": LITTLE_MEMORY, "assumptions": Assumptions(doubtful={MEMORY: {"GPU-2": 8}})}


@cases(
    "pod, resource, given, places",
    {
        "the lowest of the fullest card": (POD, CORE, {"record": SOME}, "GPU-0::10-59"),
        "that fits": (BEFORE_MORE, CORE, {"record": HALF}, "GPU-1::0-79"),
        "memory follows cores": (POD, MEMORY, {"record": HAS_CORES}, "GPU-2::0-3"),
        "cores follow memory": (POD, CORE, {"record": HAS_MEMORY}, "GPU-2::0-49"),
        "a plan that contradicts what is held": (POD, MEMORY, CONTRADICTED, "GPU-2::0-3"),
        "what is offered, and the node has": (POD, CORE, {"available": FEW}, "GPU-2::40-89"),
        "no unhealthy card": (POD, CORE, {"ill": "GPU-0"}, "GPU-1::0-49"),
        "what is handed on settles the card (K7)": (WITH_INIT, CORE, HANDED_ON, "GPU-2::0-1,5-6"),
        "and what will be": (WITH_INIT, MEMORY, {"record": INIT_HAD_CARD}, "GPU-2::0"),
        "an init: where what follows fits": (BEFORE_MORE, CORE, BEFORE, "GPU-1::0-9"),
        "rather where nothing is withheld": (POD, CORE, _withheld(SOME, 0), "GPU-1::0-49"),
        "else where it is only assumed": (POD, CORE, _withheld(SOME, 0, 1, 2), "GPU-0::10-59"),
        "else what a pod holds that may be over": (POD, CORE, DOUBTFUL, "GPU-2::0-49"),
    },
)
def test_a_container_gets_places(
    pod: PodView, resource: Resource, given: dict[str, Any], places: str
) -> None:
    placement = _placement(pod, resource, **given)
    assert summarize([str(ticket) for ticket in placement.tickets]) == places
    assert placement.cards == (places[:5],)


def test_whole_cards_with_less_memory_than_cards_follow_their_plan() -> None:
    """One block lies on one card; the plan made with it knows the other card."""
    pod = view("p", container("c0", 200, 1))
    placement = _placement(pod, MEMORY)
    assert (placement.cards, placement.tickets) == (("GPU-0", "GPU-1"), _tickets(0, [0]))
    record = record_of(recorded(pod, c0={MEMORY: frozenset({"GPU-0::0"})}))
    for cards in (placement.cards, ("GPU-0", "GPU-2")):
        assert _placement(pod, CORE, record=record, plan=_planned(*cards)).cards == cards
    record = record_of(recorded(pod, c0={MEMORY: frozenset({"GPU-2::0"})}))
    assert _placement(pod, CORE, record=record).cards == ("GPU-0", "GPU-2"), "without a plan"


FULL = _others(c0={CORE: ids("GPU-0", range(60))}, c1={MEMORY: ids("GPU-1", range(7))})


NOWHERE = {"record": HAS_CORES, "available": list(ids("GPU-1", range(10)))}


@cases(
    "resource, given, why",
    {
        "for each card": (
            *(CORE, {"record": FULL, "ill": "GPU-2"}),
            "GPU-0: 40 of 50 cores; GPU-1: 3 of 4 memory blocks; GPU-2: unhealthy (Xid 79)",
        ),
        "it cannot follow its cores": (MEMORY, NOWHERE, "GPU-2: 0 of 4 memory blocks"),
        "by the record, whatever is withheld": (
            *(CORE, _withheld(LITTLE_MEMORY, 0)),
            "; ".join(f"GPU-{card}: 2 of 4 memory blocks" for card in range(3)),
        ),
    },
)
def test_a_refusal_says_why_nothing_fits(
    resource: Resource, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        _placement(POD, resource, **given)
    asked, _, found = str(caught.value).partition(": 0 of 1 cards found; ")
    assert asked == "no card fits 50 cores and 4 memory blocks"
    assert found.replace(" free", "") == why


@pytest.mark.parametrize(
    ("cores", "memory", "cards", "needed"),
    [
        (1, 10, 3, 1),
        (1, 11, 3, 200),
        (1, 20, 3, 200),
        (1, 21, 3, 300),
        (99, 11, 3, 200),
        (100, 99, 3, 100),
        (1, 0, 3, 1),
        (1, 11, 0, 1),
    ],
)
def test_more_memory_than_a_card_has_is_asked_for_with_whole_cards(
    cores: int, memory: int, cards: int, needed: int
) -> None:
    asked = container("c0", cores, memory)
    found = at_least(asked, device_table(cards=cards))
    assert (found.demand.cores, found.demand.memory) == (needed, memory)
    assert (found is asked) is (needed == cores)


# --- which places of the cards -------------------------------------------------------

SHARE, WHOLE = Demand(5, 4), Demand(200, 5)


@cases(
    "demand, resource, cards, must, chosen",
    {
        "the lowest": (SHARE, CORE, [1], [], "GPU-1::0-4"),
        "the lowest blocks": (SHARE, MEMORY, [1], [], "GPU-1::0-3"),
        "whole cards": (WHOLE, CORE, [0, 2], [], "GPU-0::0-99; GPU-2::0-99"),
        "their memory is shared out": (WHOLE, MEMORY, [0, 2], [], "GPU-0::0-2; GPU-2::0-1"),
        "what must be taken counts": (SHARE, CORE, [0], [8, 9], "GPU-0::0-2,8-9"),
        "on its card": (Demand(200, 4), MEMORY, [0, 1], [8, 9], "GPU-0::8-9; GPU-1::0-1"),
        "and is all of it": (Demand(200, 4), MEMORY, [0, 1], [0, 1, 2], "GPU-0::0-2; GPU-1::0"),
        "be it more than asked for": (Demand(50, 2), MEMORY, [0], [0, 1, 2], "GPU-0::0-2"),
    },
)
def test_places_are_picked(
    demand: Demand, resource: Resource, cards: list[int], must: list[int], chosen: str
) -> None:
    free = {f"GPU-{card}": _tickets(card, range(100)) for card in range(3)}
    taken = _tickets(0, must)
    found = pick(demand, resource, [f"GPU-{n}" for n in cards], free=free, must=taken)
    assert found[: len(must)] == taken, "what must be taken goes first"
    assert summarize([str(ticket) for ticket in found]) == chosen


def test_too_few_places_are_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        pick(WHOLE, MEMORY, ["GPU-0", "GPU-1"], free={"GPU-0": _tickets(0, range(9))})
    assert str(caught.value) == (
        "5 places of memory were asked for on GPU-0, GPU-1, 3 are free there"
    )


# --- a node filled up ----------------------------------------------------------------

_demands = st.tuples(st.sampled_from([1, 10, 33, 50, 80, 99]), st.integers(1, 6)) | st.tuples(
    st.sampled_from([100, 200]), st.integers(0, 7)
)
_containers = st.lists(
    st.tuples(st.sampled_from([INIT, SIDECAR, MAIN]), _demands), min_size=1, max_size=3
)


class Holders:
    """Pods that are given something, one after the other."""

    def __init__(self) -> None:
        self._pods: dict[PodId, PodView] = {}
        self._held: dict[PodId, dict[str, dict[Resource, frozenset[str]]]] = {}

    def give(self, pod: PodView, name: str, resource: Resource, taken: Iterable[str]) -> None:
        self._pods[pod.id] = pod
        held = self._held.setdefault(pod.id, {})
        held.setdefault(name, {})[resource] = frozenset(taken)

    @property
    def record(self) -> Record:
        pods = self._pods.items()
        return record_of(*(recorded(pod, **self._held[pod_id]) for pod_id, pod in pods))


@settings(patient, max_examples=share(30))
@given(
    pods=st.lists(st.tuples(_containers, st.booleans()), max_size=8),
    policy=st.sampled_from(Policy),
    data=st.data(),
)
def test_a_node_is_never_filled_over_and_a_pod_is_refused_at_once_or_served_to_its_end(
    pods: list[tuple[list[tuple[Any, tuple[int, int]]], bool]], policy: Policy, data: st.DataObject
) -> None:
    """Pods come one after another, as to a kubelet that hands on nothing and keeps everything."""
    node, holders = device_table(cards=3), Holders()
    for number, (containers, core_first) in enumerate(pods):
        named = [
            container(f"c{index}", *counts, kind=SIDECAR if kind is INIT else kind)
            for index, (kind, counts) in enumerate(containers)
        ]
        pod = view(f"p{number}", *named)
        free = {
            card.uuid: {
                each: free_places(holders.record, node, each)[card.uuid] for each in Resource
            }
            for card in node.inventory.cards
        }
        possible = can_be_placed(named, free, {card: dict.fromkeys(Resource, 0) for card in free})
        plan: Plan | None = None
        for asked, resource in (
            (asked, resource)
            for asked in named
            for resource in ((CORE, MEMORY) if core_first else (MEMORY, CORE))
            if count_of(asked.demand, resource)
        ):
            held = holders.record.held(resource)
            offered = [each for each in every_id(node, resource) if each not in held]
            given: dict[str, Any] = {
                "name": asked.name,
                "record": holders.record,
                "node": node,
                "policy": policy,
                "plan": plan,
            }
            try:
                placement = _placement(
                    pod, resource, available=data.draw(st.permutations(offered)), **given
                )
            except PlacementError:
                assert not possible
                assert plan is None  # at its first call, or never
                break
            assert possible
            assert _placement(pod, resource, available=offered, **given) == placement
            plan, taken = placement.plan, [str(ticket) for ticket in placement.tickets]
            assert len(taken) == len(set(taken)) == count_of(asked.demand, resource)
            assert set(taken) <= set(offered)
            translate(resource, placement.tickets)  # raises when a share is split, a card not whole
            assert {ticket.card for ticket in placement.tickets} <= set(placement.cards)
            if resource is MEMORY:
                by_card = per_card(placement.tickets)
                assert sorted(by_card.values()) == sorted(
                    filter(None, asked.demand.memory_per_card())
                )
            holders.give(pod, asked.name, resource, taken)
    for resource in Resource:
        used = Counter(ticket.card for ticket in node.read(resource, holders.record.held(resource)))
        for card in node.inventory.cards:
            assert used[card.uuid] <= node.places(resource, card)


class Kubelet:
    """What a kubelet does with a pod's places: it hands on those of ordinary init containers."""

    def __init__(self, node: DeviceTable) -> None:
        self.node = node
        self.reusable: dict[Resource, set[str]] = {resource: set() for resource in Resource}
        self.taken: dict[Resource, set[str]] = {resource: set() for resource in Resource}

    def offers(self, resource: Resource) -> list[str]:
        """What the agent may choose from; what is handed on comes beside it."""
        known = every_id(self.node, resource)
        return [each for each in known if each not in self.taken[resource]]

    def hands_on(self, resource: Resource, size: int) -> frozenset[str]:
        """What the container has to take, at most all it asks for."""
        return frozenset(sorted(self.reusable[resource])[:size])

    def gives(self, resource: Resource, asked: ContainerDemand, taken: frozenset[str]) -> None:
        """Assign to the pod, and keep what an ordinary init container took for the next ones."""
        self.taken[resource] |= taken
        if asked.kind is INIT:
            self.reusable[resource] |= taken
        else:
            self.reusable[resource] -= taken


@settings(patient, max_examples=share(50))
@given(containers=_containers, core_first=st.lists(st.booleans(), min_size=3, max_size=3))
def test_looking_ahead_a_pod_of_shares_that_starts_is_never_stuck_on_handed_on_places(
    containers: list[tuple[Any, tuple[int, int]]], core_first: list[bool]
) -> None:
    """Three empty cards have room for three shares; no init container may spoil that (K7)."""
    named = [
        container(f"c{index}", min(counts[0], 33), min(max(counts[1], 1), 3), kind=kind)
        for index, (kind, counts) in enumerate(containers)
    ]
    node, holders, pod = device_table(cards=3), Holders(), view("p", *named)
    kubelet = Kubelet(node)
    plan: Plan | None = None
    for asked, first in zip(named, core_first, strict=False):
        for resource in (CORE, MEMORY) if first else (MEMORY, CORE):
            size = count_of(asked.demand, resource)
            must = kubelet.hands_on(resource, size)
            taken = must
            if len(must) < size:  # else no preferred call is made (K2)
                placement = _placement(
                    pod,
                    resource,
                    name=asked.name,
                    record=holders.record,
                    node=node,
                    available=[*kubelet.offers(resource), *must],
                    must=node.read(resource, must),
                    plan=plan,
                )
                plan, taken = placement.plan, frozenset(map(str, placement.tickets))
            assert must <= taken
            assert len(taken) == size
            translate(resource, node.read(resource, taken))
            kubelet.gives(resource, asked, taken)
            holders.give(pod, asked.name, resource, taken)
        cards = {
            ticket.card
            for resource in Resource
            if (held := holders.record.holding(ContainerRef(pod.id, asked.name), resource))
            for ticket in node.read(resource, held)
        }
        assert len(cards) == 1
