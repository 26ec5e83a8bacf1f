"""What init containers leave over: the rules, against a kubelet that hands it on (fact K7)."""

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

NAMES = Names()
MAIN, INIT, SIDECAR = ContainerKind.MAIN, ContainerKind.INIT, ContainerKind.SIDECAR
Asked = tuple[ContainerKind, int, int] | tuple[ContainerKind, int, int, int]
"""Kind, cores and memory blocks of a container, and over how many cards they are divided."""


def pod(*containers: Asked) -> PodDemand:
    return PodDemand(
        tuple(
            ContainerDemand(f"c{index}", kind, index, Demand(*counts))
            for index, (kind, *counts) in enumerate(containers)
        )
    )


def refusals(*containers: Asked) -> list[str]:
    """Return the texts of all errors of a pod."""
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


# --- what is held ---------------------------------------------------------------------


def test_what_init_containers_leave_is_given_before_other_devices() -> None:
    assert serve(INIT, 50, 20) == ReceivedDevices(reused=20, fresh=30, reusable=50)
    assert serve(MAIN, 50, 20) == ReceivedDevices(reused=20, fresh=30, reusable=0)
    assert serve(SIDECAR, 5, 20) == ReceivedDevices(reused=5, fresh=0, reusable=15)


def test_a_card_gives_more_than_its_part_of_a_request_where_more_is_reusable() -> None:
    assert serve_on_cards(MAIN, (4, 4), (7, 0)) == [
        ReceivedDevices(7, 0, 0),
        ReceivedDevices(0, 1, 0),
    ]


def test_what_is_left_stays_with_the_init_container_and_the_rest_counts_where_it_is_now() -> None:
    demand = pod((INIT, 50, 8), (SIDECAR, 10, 1), (MAIN, 30, 9))
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
def test_what_is_held_of_one_card_is_what_is_held_at_most(containers: list[Asked]) -> None:
    """An init container runs beside the sidecars before it, and all others beside each other."""
    demand = pod(*containers)
    held = held_on_cards(demand, {each.name: ("a",) for each in demand.containers})
    for at, resource in enumerate(Resource):
        kept = most = 0
        for kind, *counts in containers:
            most = max(most, kept + counts[at])
            kept += counts[at] if kind is not INIT else 0
        assert most_at_once(demand, resource) == sum(row[at] for row in held.values()) == most


# --- bad -----------------------------------------------------------------------------


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
            id="both are, and a whole card is asked for",
        ),
        pytest.param(
            [(INIT, 50, 1), (SIDECAR, 30, 1), (INIT, 80, 1)],
            *("initContainers[2]", "20 cores", "70 cores"),
            id="an init container is bound as well",
        ),
        pytest.param(
            [(INIT, 50, 8), (SIDECAR, 60, 2), (INIT, 100, 0), (MAIN, 30, 2)],
            *("containers[0]", "6 memory blocks", ""),
            id="cores and memory are of two cards",
        ),
    ],
)
def test_a_container_that_does_not_fit_beside_reusable_slots_is_refused(
    containers: list[Asked], path: str, left: str, room: str
) -> None:
    """The kubelet hands these on before anything else, fact K7: no node could serve it."""
    has = f"only {room}" if room else "no core"
    less = f"at most {room.split(maxsplit=1)[0]} here, or " if room else ""
    (message,) = refusals(*containers)
    assert message == (
        f"spec.{path}.resources.limits[{NAMES.core}]: Invalid value: {containers[-1][1]}: the "
        f"kubelet would first reuse {left} of init containers before it, but their card has {has} "
        f"free: request {less}so few in those that none remain for this container"
    )


@pytest.mark.parametrize(
    ("containers", "path", "left"),
    [
        ([(INIT, 200, 0), (MAIN, 100, 0)], "containers[0]", 200),
        ([(INIT, 400, 0), (INIT, 100, 0), (MAIN, 400, 0)], "initContainers[1]", 400),
    ],
)
def test_less_than_several_cards_that_are_left_over_would_be_split(
    containers: list[Asked], path: str, left: int
) -> None:
    (message, *_) = refusals(*containers)
    assert message.startswith(f"spec.{path}.resources.limits[{NAMES.core}]: Invalid value: ")
    assert message.endswith(
        f"the kubelet would reuse some of the {left} cores of init containers before it, from "
        f"several cards: request {left} or more here, or at most 100 in those"
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
            id="its part of a card is less than what is left over there",
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
    containers: list[Asked], path: str, left: str, each: str
) -> None:
    (message,) = refusals(*containers)
    cards = containers[0][3] if len(containers[0]) > 3 else 1
    assert message == (
        f"spec.{path}.resources.limits[{NAMES.core}]: Invalid value: {containers[-1][1]}: the "
        f"kubelet would first reuse {left} of init containers before it, from {cards} "
        f"card{'s' if cards > 1 else ''}: request at least {each} of each of so many cards or more "
        "here, or so few in those that none remain for this container"
    )


# --- whatever comes: a kubelet that hands on, and a device plugin that tries all cards --------

Card = tuple[int, int, int]
"""Of one card: cores free, cores left over, memory blocks left over."""


def is_served(containers: Sequence[Asked], *, by_any_choice: bool) -> bool:
    """Return whether a device plugin can serve a pod on as many empty cards as it could need.

    Args:
        containers: in the kubelet's order, cores in fifths of a card.
        by_any_choice: whichever places the kubelet hands on; else it is enough if it hands on
            the right ones.
    """
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


def _cards(container: Asked) -> int:
    """The number of cards of a container, whose cores are in fifths of a card."""
    _, cores, _, *split = container
    return max(cores // 5, 1) if not split else split[0]


def _taken(count: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every way to take *count* of what each card has left over, or all there is."""
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
    container: Asked,
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


def _pods_with(asked: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Asked]]:
    containers = st.builds(lambda kind, each: (kind, *each), st.sampled_from(ContainerKind), asked)
    return st.lists(containers, min_size=2, max_size=most)


_containers = _pods_with(_shares | _whole, 5) | _pods_with(_shares | _divided | st.just((5, 0)), 4)


def _in_hundredths(container: Asked) -> Asked:
    if len(container) == 3:
        kind, cores, memory = container
        return kind, 20 * cores, memory
    kind, cores, memory, split = container
    return kind, 20 * cores, memory, split


def _rule(containers: Sequence[Asked]) -> str | None:
    """The rule that a pod breaks; its cores are in fifths of a card."""
    demand = pod(*[_in_hundredths(each) for each in containers])
    conflict = find_leftover_conflict(demand.containers)
    return conflict.rule if conflict else None


@settings(max_examples=share(400), deadline=None)
@given(_containers)
def test_a_pod_is_refused_if_and_only_if_no_choice_of_the_kubelet_serves_it(
    containers: list[Asked],
) -> None:
    """And one that is not refused is served whatever the kubelet chooses: nothing to warn of.

    What would be split is refused, although by luck the kubelet might hand on what is of one card.
    """
    rule = _rule(containers)
    if rule == NO_ROOM:
        assert not is_served(containers, by_any_choice=False)
    elif rule == SPLIT:
        assert not is_served(containers, by_any_choice=True)
    else:
        assert is_served(containers, by_any_choice=True)


@pytest.mark.parametrize("last", [INIT, MAIN])
def test_what_a_refusal_advises_is_the_most_that_helps(last: ContainerKind) -> None:
    asked = [(cores, memory) for cores in (40, 60, 80, 100) for memory in (1, 2, 3)]
    advised = 0
    for (init, init_memory), (kept, kept_memory), (cores, memory) in product(asked, repeat=3):
        before = ((INIT, init, init_memory), (SIDECAR, kept, kept_memory))
        conflict = find_leftover_conflict(pod(*before, (last, cores, memory)).containers)
        _, _, advice = (conflict.detail if conflict else "").partition("request at most ")
        if not advice:
            continue
        most = int(advice.split()[0])
        assert not find_leftover_conflict(pod(*before, (last, most, memory)).containers)
        assert find_leftover_conflict(pod(*before, (last, most + 1, memory)).containers)
        advised += 1
    assert advised > 100
