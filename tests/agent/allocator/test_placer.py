from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.free_places import free_places
from agent.allocator.model.containers import ContainerRef, Places
from agent.allocator.model.grant import translate
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.tickets import DeviceTable, Ticket, per_card
from agent.allocator.placement_request import Assumptions, PlacementRequest
from agent.allocator.placer import Placement, Placer, at_least
from agent.allocator.record import Record
from agent.errors import PlacementError
from contract.demand import ContainerDemand
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
OTHER = view("q")


def _placement(
    pod: PodView,
    resource: Resource,
    *,
    name: str = "c0",
    record: Record | None = None,
    node: DeviceTable = NODE,
    available: Sequence[str] | None = None,
    must: Sequence[Ticket] = (),
    **given: Any,
) -> Placement:
    """Place a container of *pod* on a node where the kubelet offers everything unless told."""
    asked = pod.demand.of(name)
    assert asked is not None
    unhealthy = given.pop("unhealthy", lambda _uuid: "")
    placer = Placer(table=node, links=Links(node.inventory), unhealthy=unhealthy)
    request = PlacementRequest(
        ContainerRef(pod.id, name),
        asked,
        pod.demand,
        resource,
        given.pop("policy", Policy.BINPACK),
        frozenset(every_id(node, resource) if available is None else available),
        must,
        **given,
    )
    return placer.place(request, record or record_of())


def _place(*asked: Any, **given: Any) -> tuple[tuple[str, ...], list[str]]:
    """Place a container; return its cards and device IDs."""
    placement = _placement(*asked, **given)
    return placement.cards, [str(ticket) for ticket in placement.tickets]


def _others(**held: Places) -> Record:
    """A record in which containers of another pod hold something."""
    return record_of(recorded(view("q", *map(container, held)), **held))


def _own(pod: PodView, **held: Places) -> Record:
    """A record in which containers of the pod itself hold something."""
    return record_of(recorded(pod, **held))


def _planned(*cards: str, name: str = "c0") -> Plan:
    """What an earlier call has planned."""
    return {name: Assignment(cards, {})}


def _refusal(*asked: Any, **given: Any) -> str:
    with pytest.raises(PlacementError) as caught:
        _place(*asked, **given)
    return str(caught.value)


def _ill(card: str, reason: str) -> Callable[[str], str]:
    return lambda uuid: reason if uuid == card else ""


def _tickets(card: str, places: Sequence[int]) -> list[Ticket]:
    return [Ticket(card, place) for place in places]


# --- one container -------------------------------------------------------------------


def test_a_share_gets_the_lowest_places_of_the_fullest_card_that_fits() -> None:
    record = _others(c0={CORE: ids("GPU-1", range(30))})
    cards, taken = _place(view("p", container("c0", 3, 2)), CORE, record=record)
    assert cards == ("GPU-1",)
    assert taken == ["GPU-1::30", "GPU-1::31", "GPU-1::32"]


@pytest.mark.parametrize("first", Resource, ids=str)
def test_the_second_resource_follows_the_first(first: Resource) -> None:
    pod, held = view("p"), ids("GPU-2", range(50 if first is CORE else 4))
    record = record_of(
        recorded(pod, c0={first: held}), recorded(OTHER, c0={CORE: ids("GPU-1", range(50))})
    )
    cards, taken = _place(pod, first.other, record=record)
    assert cards == ("GPU-2",)
    assert {each.rpartition("::")[0] for each in taken} == {"GPU-2"}


def test_whole_cards_with_less_memory_than_cards_follow_their_plan() -> None:
    """One block lies on one card; the plan made with it knows the other card."""
    pod = view("p", container("c0", 200, 1))
    cards, taken = _place(pod, MEMORY)
    assert (cards, taken) == (("GPU-0", "GPU-1"), ["GPU-0::0"])
    record = _own(pod, c0={MEMORY: frozenset(taken)})
    assert _place(pod, CORE, record=record, plan=_planned(*cards))[0] == cards
    other = ("GPU-0", "GPU-2")
    assert _place(pod, CORE, record=record, plan=_planned(*other))[0] == other


def test_without_a_plan_whole_cards_include_the_one_that_has_the_memory() -> None:
    pod = view("p", container("c0", 200, 1))
    record = _own(pod, c0={MEMORY: frozenset({"GPU-2::0"})})
    assert _place(pod, CORE, record=record)[0] == ("GPU-0", "GPU-2")


def test_a_plan_that_contradicts_what_is_held_is_dropped() -> None:
    record = _own(view("p"), c0={CORE: ids("GPU-2", range(50))})
    assert _place(view("p"), MEMORY, record=record, plan=_planned("GPU-0"))[0] == ("GPU-2",)


# --- what may be taken ---------------------------------------------------------------


def test_only_what_the_kubelet_offers_is_taken() -> None:
    available = [*ids("GPU-0", range(10)), *sorted(ids("GPU-2", range(40, 90)))]
    cards, taken = _place(view("p"), CORE, available=available)
    assert cards == ("GPU-2",)
    assert taken == [f"GPU-2::{place}" for place in range(40, 90)]


def test_what_a_live_container_holds_is_not_taken_though_offered() -> None:
    """Fact K15."""
    _, taken = _place(view("p"), CORE, record=_others(c0={CORE: ids("GPU-0", range(10))}))
    assert taken == [f"GPU-0::{place}" for place in range(10, 60)]


def test_an_id_the_node_does_not_know_is_not_taken() -> None:
    available = ["GPU-9::0", "nonsense", *ids("GPU-1", range(50))]
    assert _place(view("p"), CORE, available=available)[0] == ("GPU-1",)


def test_an_unhealthy_card_is_not_taken() -> None:
    cards, _ = _place(view("p"), CORE, unhealthy=_ill("GPU-0", "lost"))
    assert cards == ("GPU-1",)


def test_a_refusal_says_for_each_card_why_not() -> None:
    record = _others(c0={CORE: ids("GPU-0", range(60))}, c1={MEMORY: ids("GPU-1", range(7))})
    assert _refusal(view("p"), CORE, record=record, unhealthy=_ill("GPU-2", "Xid 79")) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: 40 of 50 cores free; GPU-1: 3 of 4 memory blocks free; GPU-2: unhealthy (Xid 79)"
    )


def test_memory_that_cannot_follow_the_cores_is_refused() -> None:
    record = _own(view("p"), c0={CORE: ids("GPU-0", range(50))})
    assert _refusal(view("p"), MEMORY, record=record, available=list(ids("GPU-1", range(10)))) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: 0 of 4 memory blocks free"
    )


# --- K7: init containers -------------------------------------------------------------


def test_places_that_must_be_taken_are_taken_and_settle_the_card() -> None:
    pod = view("p", container("init", 2, 1, kind=INIT), container("c0", 4, 1))
    record = _own(pod, init={CORE: ids("GPU-2", range(5, 7))})
    cards, taken = _place(pod, CORE, record=record, must=_tickets("GPU-2", [5, 6]))
    assert cards == ("GPU-2",)
    assert taken == ["GPU-2::5", "GPU-2::6", "GPU-2::0", "GPU-2::1"]


def test_what_init_containers_left_over_of_the_other_resource_settles_the_card_too() -> None:
    """The kubelet will make the container take it, so the cores must go where it lies."""
    pod = view("p", container("init", 100, 0, kind=INIT), container("c0", 50, 4))
    record = _own(pod, init={CORE: ids("GPU-1", range(100))})
    assert _place(pod, MEMORY, record=record)[0] == ("GPU-1",)


def test_an_init_container_is_placed_where_what_follows_it_fits_too() -> None:
    record = _others(c0={CORE: ids("GPU-0", range(50))})
    init, later = container("init", 10, 1, kind=INIT), container("c0", 80, 4)
    assert _place(view("p", init), CORE, name="init", record=record)[0] == ("GPU-0",)
    assert _place(view("p", init, later), CORE, name="init", record=record)[0] == ("GPU-1",)


# --- where the record may be wrong ----------------------------------------------------

SOME = _others(c0={CORE: ids("GPU-0", range(10))})  # binpack would take this card


def _counts(resource: Resource, cards: Iterable[str], count: int) -> Mapping[Any, Any]:
    return {resource: dict.fromkeys(cards, count)}


def test_a_card_of_which_nothing_is_withheld_goes_before_one_that_is_withheld() -> None:
    withheld = Assumptions(withheld=_counts(MEMORY, ["GPU-0"], 10))
    assert _place(view("p"), CORE, record=SOME)[0] == ("GPU-0",)
    assert _place(view("p"), CORE, record=SOME, assumptions=withheld)[0] == ("GPU-1",)


def test_nobody_is_refused_for_what_is_only_assumed_to_be_withheld() -> None:
    """The kubelet offers the places, and nobody is known to hold them."""
    withheld = Assumptions(withheld=_counts(MEMORY, ["GPU-0", "GPU-1", "GPU-2"], 10))
    assert _place(view("p"), CORE, record=SOME, assumptions=withheld)[0] == ("GPU-0",)


def test_what_a_pod_holds_that_may_be_over_is_taken_where_nothing_else_is_left() -> None:
    held = {f"c{index}": {MEMORY: ids(f"GPU-{index}", range(8))} for index in range(3)}
    doubtful = Assumptions(doubtful=_counts(MEMORY, ["GPU-2"], 8))
    assert _place(view("p"), CORE, record=_others(**held), assumptions=doubtful)[0] == ("GPU-2",)


def test_what_the_record_knows_is_refused_though_something_was_withheld() -> None:
    held = {f"c{index}": {MEMORY: ids(f"GPU-{index}", range(8))} for index in range(3)}
    withheld = Assumptions(withheld=_counts(MEMORY, ["GPU-0"], 1))
    assert _refusal(view("p"), CORE, record=_others(**held), assumptions=withheld) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: 2 of 4 memory blocks free; GPU-1: 2 of 4 memory blocks free; "
        "GPU-2: 2 of 4 memory blocks free"
    )


# --- containers of which only the memory is known -------------------------------------


@pytest.mark.parametrize(
    ("cores", "memory", "needed"),
    [
        (1, 10, 1),
        (1, 11, 200),
        (1, 20, 200),
        (1, 21, 300),
        (99, 11, 200),
        (100, 99, 100),
        (1, 0, 1),
    ],
)
def test_more_memory_than_a_card_has_is_asked_for_with_whole_cards(
    cores: int, memory: int, needed: int
) -> None:
    asked = container("c0", cores, memory)
    found = at_least(asked, NODE)
    assert (found.demand.cores, found.demand.memory) == (needed, memory)
    assert (found is asked) is (needed == cores)


def test_on_a_node_without_cards_nothing_is_worked_out() -> None:
    asked = container("c0", 1, 11)
    assert at_least(asked, device_table(cards=0)) is asked


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
