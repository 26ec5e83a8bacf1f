"""Reusable slots: the rules, against a kubelet that reuses them first (fact K7)."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.names import Names
from contract.requests import read_pod_demand
from contract.resource import Resource
from contract.reusable import (
    NO_ROOM,
    SPLIT,
    ReceivedDevices,
    find_leftover_conflict,
    held_on_cards,
    most_at_once,
    reusable_ids,
    serve,
    serve_on_cards,
)
from tests.examples import share

Requested = tuple[ContainerKind, int, int, *tuple[int, ...]]
"""Kind, cores and memory blocks of a container, and over how many cards they are divided."""


def demand_of(*containers: Requested) -> PodDemand:
    return PodDemand(
        tuple(
            ContainerDemand(f"c{index}", kind, index, Demand(*counts))
            for index, (kind, *counts) in enumerate(containers)
        )
    )


NAMES = Names()
MAIN, INIT, SIDECAR = ContainerKind.MAIN, ContainerKind.INIT, ContainerKind.SIDECAR


def refusals(*containers: Requested) -> list[str]:
    spec: dict[str, Any] = {"initContainers": [], "containers": []}
    annotations = dict[str, str]()
    for index, (kind, cores, memory, *split) in enumerate(containers):
        annotations |= {NAMES.gpu_cards_of(f"c{index}"): str(each) for each in split}
        limits = {NAMES.core: str(cores)} | ({NAMES.memory: str(memory)} if memory else {})
        policy = {"restartPolicy": "Always"} if kind is SIDECAR else {}
        field = "containers" if kind is MAIN else "initContainers"
        spec[field].append({"name": f"c{index}", "resources": {"limits": limits}} | policy)
    manifest = {"metadata": {"annotations": annotations}, "spec": spec}
    return [str(error) for error in read_pod_demand(manifest, NAMES)[1]]


def test_reusable_devices_are_allocated_before_other_ones() -> None:
    assert serve(INIT, 50, 20) == ReceivedDevices(reused=20, fresh=30, reusable=50)
    assert serve(MAIN, 50, 20) == ReceivedDevices(reused=20, fresh=30, reusable=0)
    assert serve(SIDECAR, 5, 20) == ReceivedDevices(reused=5, fresh=0, reusable=15)


def test_a_card_has_more_than_its_part_of_a_request_if_more_is_reusable() -> None:
    assert serve_on_cards(MAIN, (4, 4), (7, 0)) == [
        ReceivedDevices(7, 0, 0),
        ReceivedDevices(0, 1, 0),
    ]


def test_reusable_devices_count_with_the_init_container_until_they_are_reused() -> None:
    demand = demand_of((INIT, 50, 8), (SIDECAR, 10, 1), (MAIN, 30, 9))
    assert held_on_cards(demand, dict.fromkeys(("c0", "c1", "c2"), ("a",))) == {
        ("c0", "a"): (10, 0),
        ("c1", "a"): (10, 1),
        ("c2", "a"): (30, 9),
    }


def test_device_ids_that_a_later_container_holds_are_not_reusable() -> None:
    held = [(True, {"a", "b"}), (True, {"b", "c"}), (False, {"c", "d"})]
    assert reusable_ids(held) == {"a", "b"}


@given(
    st.lists(
        st.tuples(st.sampled_from(ContainerKind), st.integers(1, 99), st.integers(0, 9)), max_size=6
    )
)
def test_a_pod_holds_of_a_card_what_it_has_at_most_at_once(containers: list[Requested]) -> None:
    """An init container runs beside the sidecars before it, and all others beside each other."""
    demand = demand_of(*containers)
    held = held_on_cards(demand, {each.name: ("a",) for each in demand.containers})
    for at, resource in enumerate(Resource):
        kept = most = 0
        for kind, *counts in containers:
            most = max(most, kept + counts[at])
            kept += counts[at] if kind is not INIT else 0
        assert most_at_once(demand, resource) == sum(row[at] for row in held.values()) == most


@pytest.mark.parametrize(
    ("containers", "path", "left", "room"),
    [
        pytest.param(
            [(INIT, 100, 0), (MAIN, 60, 1), (MAIN, 60, 1)],
            *("containers[1]", "40 cores", "40 cores"),
            id="a whole card is left over",
        ),
        pytest.param(
            [(INIT, 100, 8), (SIDECAR, 99, 1), (MAIN, 100, 4)],
            *("containers[0]", "1 core and 7 memory blocks", "1 core"),
            id="both are, and a whole card is requested",
        ),
        pytest.param(
            [(INIT, 50, 8), (SIDECAR, 60, 2), (INIT, 100, 0), (MAIN, 30, 2)],
            *("containers[0]", "6 memory blocks", ""),
            id="cores and memory are of two cards",
        ),
    ],
)
def test_a_container_that_does_not_fit_beside_reusable_slots_is_refused(
    containers: list[Requested], path: str, left: str, room: str
) -> None:
    """The kubelet reuses these slots first (fact K7), so no node could serve it."""
    has = f"only {room}" if room else "no core"
    less = f"at most {room.split(maxsplit=1)[0]} here, or " if room else ""
    (message,) = refusals(*containers)
    assert message == (
        f"spec.{path}.resources.limits[{NAMES.core}]: Invalid value: {containers[-1][1]}: the "
        f"kubelet would first reuse {left} of init containers before it, but their card has {has} "
        f"free: request {less}so few in those that none remain for this container"
    )


def test_a_request_for_fewer_cards_than_are_reusable_is_refused() -> None:
    (message, *_) = refusals((INIT, 400, 0), (INIT, 100, 0), (MAIN, 400, 0))
    assert message == (
        f"spec.initContainers[1].resources.limits[{NAMES.core}]: Invalid value: 100: the kubelet "
        "would reuse some of the 400 cores of init containers before it, from several cards: "
        "request 400 or more here, or at most 100 in those"
    )


@pytest.mark.parametrize(
    ("containers", "path", "left", "each"),
    [
        pytest.param(
            [(INIT, 60, 8, 2), (MAIN, 50, 8)],
            *("containers[0]", "60 cores and 8 memory blocks", "30 cores and 4 memory blocks"),
            id="one card, and two are left over",
        ),
        pytest.param(
            [(INIT, 50, 8), (MAIN, 60, 16, 2)],
            *("containers[0]", "50 cores and 8 memory blocks", "50 cores and 8 memory blocks"),
            id="its part of a card is less than the reusable slots there",
        ),
        pytest.param(
            [(INIT, 60, 4, 2), (MAIN, 60, 2, 2)],
            *("containers[0]", "60 cores and 4 memory blocks", "30 cores and 2 memory blocks"),
            id="memory is chosen among two cards",
        ),
        pytest.param(
            [(INIT, 90, 9, 3), (INIT, 100, 8, 2)],
            *("initContainers[1]", "90 cores and 9 memory blocks", "30 cores and 3 memory blocks"),
            id="an init container with fewer cards",
        ),
    ],
)
def test_a_share_that_would_get_uneven_parts_of_reusable_slots_is_refused(
    containers: list[Requested], path: str, left: str, each: str
) -> None:
    (message,) = refusals(*containers)
    cards = containers[0][3] if len(containers[0]) > 3 else 1
    assert message == (
        f"spec.{path}.resources.limits[{NAMES.core}]: Invalid value: {containers[-1][1]}: the "
        f"kubelet would first reuse {left} of init containers before it, from {cards} "
        f"card{'s' if cards > 1 else ''}: request at least {each} of each of so many cards or more "
        "here, or so few in those that none remain for this container"
    )


Card = tuple[int, int, int]
"""Of one card: free cores, reusable cores, reusable memory blocks."""


def is_served(containers: Sequence[Requested], *, by_any_choice: bool) -> bool:
    """Return whether a device plugin can serve a pod, by any or by one choice of the kubelet."""
    ways = all if by_any_choice else any

    @cache
    def play(at: int, cards: tuple[Card, ...]) -> bool:
        if at == len(containers):
            return True
        _, cores, memory, *_ = containers[at]
        handed = [
            (of_cores, of_memory)
            for of_cores in _taken(cores, [left for _, left, _ in cards])
            for of_memory in _taken(memory, [left for _, _, left in cards])
        ]
        return any(
            ways(
                any(play(at + 1, after) for after in _after(cards, containers[at], on, *each))
                for each in handed
            )
            for on in combinations(range(len(cards)), _cards(containers[at]))
        )

    return play(0, ((5, 0, 0),) * sum(map(_cards, containers)))


def _cards(container: Requested) -> int:
    """The number of cards of a container, whose cores are in fifths of a card."""
    _, cores, _, *split = container
    return max(cores // 5, 1) if not split else split[0]


def _taken(count: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every way to take *count* of the reusable slots of each card, or all there are."""
    if not left:
        yield ()
        return
    first, *others = left
    count = min(count, sum(left))
    for taken in range(max(count - sum(others), 0), min(count, first) + 1):
        for more in _taken(count - taken, others):
            yield (taken, *more)


def _after(
    cards: tuple[Card, ...],
    container: Requested,
    on: tuple[int, ...],
    of_cores: tuple[int, ...],
    of_memory: tuple[int, ...],
) -> Iterator[tuple[Card, ...]]:
    """Yield the cards after a container was placed on *on*; nothing where that cannot be."""
    kind, cores, memory, *split = container
    if any(of_cores[index] or of_memory[index] for index in range(len(cards)) if index not in on):
        return
    part = cores // split[0] if split else min(cores, 5)
    fresh = [part - of_cores[index] for index in on]
    if any(not 0 <= new <= cards[index][0] for new, index in zip(fresh, on, strict=True)):
        return
    for blocks in _taken(memory - sum(of_memory), [memory - sum(of_memory)] * len(on)):
        if split and any(
            of_memory[index] + more != memory // split[0]
            for index, more in zip(on, blocks, strict=True)
        ):
            continue
        after = list(cards)
        for index, new, more in zip(on, fresh, blocks, strict=True):
            free, left, left_memory = cards[index]
            if kind is INIT:
                after[index] = (free - new, left + new, left_memory + more)
            else:
                after[index] = (free - new, left - of_cores[index], left_memory - of_memory[index])
        yield tuple(sorted(after))


_shares = st.tuples(st.integers(1, 4), st.integers(1, 3))
_whole = st.tuples(st.sampled_from([5, 5, 10]), st.integers(0, 3))
_divided = st.tuples(st.integers(1, 4), st.integers(1, 2)).map(
    lambda each: (2 * each[0], 2 * each[1], 2)
)


def _pods_with(requested: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Requested]]:
    containers = st.builds(
        lambda kind, each: (kind, *each), st.sampled_from(ContainerKind), requested
    )
    return st.lists(containers, min_size=2, max_size=most)


_containers = _pods_with(_shares | _whole, 5) | _pods_with(_shares | _divided | st.just((5, 0)), 4)


@settings(max_examples=share(400), deadline=None)
@given(_containers)
def test_a_pod_is_refused_if_and_only_if_no_choice_of_the_kubelet_serves_it(
    containers: list[Requested],
) -> None:
    """And one that is not refused is served whatever the kubelet chooses.

    A pod that would be split is refused, although the kubelet might reuse slots of one card.
    """
    demand = demand_of(*[(each[0], 20 * each[1], *each[2:]) for each in containers])
    conflict = find_leftover_conflict(demand.containers)
    rule = conflict.rule if conflict else None
    if rule == NO_ROOM:
        assert not is_served(containers, by_any_choice=False)
    elif rule == SPLIT:
        assert not is_served(containers, by_any_choice=True)
    else:
        assert is_served(containers, by_any_choice=True)


@pytest.mark.parametrize("last", [INIT, MAIN])
def test_the_advice_of_a_refusal_is_the_largest_request_that_fits(last: ContainerKind) -> None:
    requested = [(cores, memory) for cores in (40, 60, 80, 100) for memory in (1, 2, 3)]
    advised = 0
    for (init, init_memory), (kept, kept_memory), (cores, memory) in product(requested, repeat=3):
        before = ((INIT, init, init_memory), (SIDECAR, kept, kept_memory))
        conflict = find_leftover_conflict(demand_of(*before, (last, cores, memory)).containers)
        _, _, advice = (conflict.detail if conflict else "").partition("request at most ")
        if not advice:
            continue
        most = int(advice.split()[0])
        assert not find_leftover_conflict(demand_of(*before, (last, most, memory)).containers)
        assert find_leftover_conflict(demand_of(*before, (last, most + 1, memory)).containers)
        advised += 1
    assert advised > 100
