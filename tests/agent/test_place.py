from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import PlacementError
from agent.place import CardState, Need, Policy, need_of, pick, place
from agent.tickets import Resource, Ticket
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from tests.agent.builders import CORE, INIT, MAIN, MEMORY, SIDECAR, container, patient


def _state(index: int, cores: int = 100, memory: int = 10, *, healthy: bool = True) -> CardState:
    return CardState(f"GPU-{index}", index, {CORE: cores, MEMORY: memory}, healthy)


def _need(cores: int, memory: int) -> Need:
    asked = container("c0", cores, memory)
    return need_of(PodDemand((asked,)), asked)


def _refusal(need: Need, states: Sequence[CardState], **bound: Sequence[str]) -> str:
    with pytest.raises(PlacementError) as caught:
        place(need, states, **bound)  # type: ignore[arg-type] # fixed and must, no policy
    return str(caught.value)


# --- shares --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "states", "expected"),
    [
        (Policy.BINPACK, [_state(0), _state(1, 60), _state(2, 80)], "GPU-1"),
        (Policy.BINPACK, [_state(0), _state(1, 40), _state(2, 80)], "GPU-2"),
        (Policy.BINPACK, [_state(0, 60, 10), _state(1, 60, 5)], "GPU-1"),
        (Policy.BINPACK, [_state(0, 60, 5), _state(1, 60, 5)], "GPU-0"),
        (Policy.BINPACK, [_state(0, 60, 3), _state(1)], "GPU-1"),
        (Policy.SPREAD, [_state(0, 60), _state(1), _state(2, 80)], "GPU-1"),
        (Policy.SPREAD, [_state(0, 80, 5), _state(1, 80, 10)], "GPU-1"),
        (Policy.SPREAD, [_state(0), _state(1)], "GPU-0"),
        (Policy.SPREAD, [_state(0, healthy=False), _state(1, 50)], "GPU-1"),
    ],
)
def test_a_share_goes_to_the_fullest_or_emptiest_card_that_fits_then_by_index(
    policy: Policy, states: list[CardState], expected: str
) -> None:
    assert place(_need(50, 4), states, policy=policy) == (expected,)
    assert place(_need(50, 4), states[::-1], policy=policy) == (expected,)


def test_a_share_follows_the_card_of_its_other_resource() -> None:
    states = [_state(0, 60), _state(1)]
    assert place(_need(50, 4), states, fixed=["GPU-1"]) == ("GPU-1",)


def test_a_share_takes_the_card_whose_places_are_handed_on() -> None:
    states = [_state(0, 60), _state(1)]
    assert place(_need(50, 4), states, must=["GPU-1"]) == ("GPU-1",)


# --- whole cards ---------------------------------------------------------------------


def test_whole_cards_are_the_first_free_ones() -> None:
    states = [_state(3), _state(2, 99), _state(1), _state(0)]
    assert place(_need(200, 0), states) == ("GPU-0", "GPU-1")
    assert place(_need(200, 0), states, policy=Policy.SPREAD) == ("GPU-0", "GPU-1")


def test_whole_cards_need_room_for_their_part_of_the_memory() -> None:
    states = [_state(0, memory=3), _state(1), _state(2)]
    assert place(_need(200, 6), states) == ("GPU-0", "GPU-1")
    assert place(_need(200, 7), states) == ("GPU-1", "GPU-2")


def test_whole_cards_include_those_that_are_bound() -> None:
    states = [_state(index) for index in range(4)]
    assert place(_need(200, 0), states, must=["GPU-3"]) == ("GPU-0", "GPU-3")
    assert place(_need(200, 0), states, fixed=["GPU-3", "GPU-1"]) == ("GPU-1", "GPU-3")


# --- refusals ------------------------------------------------------------------------


def test_a_refusal_says_for_each_card_why_not() -> None:
    states = [_state(1, 40), _state(0, 60, 3), _state(2, healthy=False)]
    assert _refusal(_need(50, 4), states) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: 3 of 4 memory blocks free; GPU-1: 40 of 50 cores free; GPU-2: unhealthy"
    )


def test_a_refusal_of_whole_cards_counts_those_that_fit() -> None:
    assert _refusal(_need(200, 0), [_state(0, 99), _state(1)]) == (
        "no card fits 200 cores and 0 memory blocks: 1 of 2 cards found; "
        "GPU-0: 99 of 100 cores free; GPU-1: fits"
    )


def test_a_refusal_where_a_card_is_bound_speaks_of_that_card() -> None:
    states = [_state(0), _state(1, 10)]
    assert _refusal(_need(50, 4), states, fixed=["GPU-1"]) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; GPU-1: 10 of 50 cores free"
    )
    assert _refusal(_need(50, 4), states, fixed=["GPU-0"], must=["GPU-1"]) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: the kubelet hands on places of another card; "
        "GPU-1: the container's other resource is on another card"
    )


def test_a_share_that_would_be_split_is_refused() -> None:
    assert _refusal(_need(50, 4), [_state(0), _state(1)], must=["GPU-0", "GPU-1"]) == (
        "no card fits 50 cores and 4 memory blocks: places of 2 cards must be taken; "
        "GPU-0: fits; GPU-1: fits"
    )


def test_a_node_without_cards_refuses() -> None:
    assert _refusal(_need(50, 4), []) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
    )


@pytest.mark.parametrize(("cores", "memory"), [(0, 4), (150, 4), (101, 0)])
def test_what_the_webhook_refuses_the_agent_does_not_place_either(cores: int, memory: int) -> None:
    with pytest.raises(PlacementError) as caught:
        _need(cores, memory)
    assert str(caught.value) == (
        f"{cores} cores and {memory} memory blocks fit no card: a share of one card is 1 to 99 "
        "cores, whole cards are a multiple of 100"
    )


# --- looking ahead (K7) --------------------------------------------------------------


def _of(kind: ContainerKind, cores: int, memory: int) -> tuple[ContainerKind, int, int]:
    return kind, cores, memory


@pytest.mark.parametrize(
    ("containers", "cores", "memory"),
    [
        # the first container is the one to be placed
        ([_of(MAIN, 50, 4), _of(MAIN, 30, 4)], 50, 4),
        ([_of(SIDECAR, 50, 4), _of(MAIN, 60, 8)], 50, 4),
        ([_of(INIT, 50, 4)], 50, 4),
        ([_of(INIT, 50, 4), _of(MAIN, 30, 2)], 50, 4),
        ([_of(INIT, 50, 4), _of(MAIN, 80, 4)], 80, 4),
        ([_of(INIT, 10, 1), _of(MAIN, 80, 6)], 80, 6),
        # the second gets what the first leaves over, and the rest must fit too
        ([_of(INIT, 50, 4), _of(MAIN, 30, 2), _of(MAIN, 40, 3)], 70, 5),
        # nothing is left over: the third may go elsewhere
        ([_of(INIT, 50, 4), _of(MAIN, 60, 4), _of(MAIN, 30, 9)], 60, 4),
        # an init container gives back what it took
        ([_of(INIT, 10, 1), _of(INIT, 50, 4), _of(MAIN, 60, 4)], 60, 4),
        ([_of(INIT, 10, 1), _of(SIDECAR, 20, 2), _of(MAIN, 30, 2)], 20, 2),
        # whole cards after it: this must be one of them
        ([_of(INIT, 50, 4), _of(MAIN, 100, 0)], 100, 4),
        ([_of(INIT, 5, 1), _of(MAIN, 200, 7)], 100, 4),
    ],
)
def test_a_share_needs_what_later_containers_will_be_made_to_take_there(
    containers: list[tuple[ContainerKind, int, int]], cores: int, memory: int
) -> None:
    pod = PodDemand(
        tuple(
            container(f"c{index}", *counts, kind=kind)
            for index, (kind, *counts) in enumerate(containers)
        )
    )
    need = need_of(pod, pod.containers[0])
    assert need.per_card == {CORE: cores, MEMORY: memory}
    assert need.demand == pod.containers[0].demand


def test_whole_cards_need_every_core_and_the_largest_part_of_the_memory() -> None:
    assert _need(300, 7).per_card == {CORE: 100, MEMORY: 3}
    assert _need(300, 0).per_card == {CORE: 100, MEMORY: 0}


@patient
@given(
    st.lists(
        st.builds(
            ContainerDemand,
            st.just("c"),
            st.sampled_from(ContainerKind),
            st.just(0),
            st.builds(Demand, st.integers(1, 99) | st.just(100), st.integers(1, 20)),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_looking_ahead_never_needs_less_than_asked_nor_more_than_the_pod_together(
    containers: list[ContainerDemand],
) -> None:
    need = need_of(PodDemand(tuple(containers)), containers[0])
    asked = containers[0].demand
    assert need.per_card[CORE] >= asked.cores
    assert need.per_card[MEMORY] >= asked.memory
    if asked.is_share:
        assert need.per_card[CORE] <= sum(each.demand.cores for each in containers)
        assert need.per_card[MEMORY] <= sum(each.demand.memory for each in containers)


# --- places --------------------------------------------------------------------------


def _tickets(index: int, count: int, start: int = 0) -> list[Ticket]:
    return [Ticket(f"GPU-{index}", place) for place in range(start, start + count)]


def test_the_lowest_places_of_a_share_are_taken() -> None:
    free = {"GPU-0": _tickets(0, 50, start=7), "GPU-1": _tickets(1, 100)}
    assert pick(Demand(3, 1), CORE, ["GPU-0"], free=free) == _tickets(0, 3, start=7)
    assert pick(Demand(3, 2), MEMORY, ["GPU-0"], free=free) == _tickets(0, 2, start=7)


def test_whole_cards_are_taken_whole_and_their_memory_is_shared_out() -> None:
    free = {f"GPU-{index}": _tickets(index, 100) for index in range(3)}
    cards = ["GPU-0", "GPU-2"]
    assert pick(Demand(200, 5), CORE, cards, free=free) == [*_tickets(0, 100), *_tickets(2, 100)]
    assert pick(Demand(200, 5), MEMORY, cards, free=free) == [*_tickets(0, 3), *_tickets(2, 2)]


def test_places_that_must_be_taken_are_taken_first_and_count() -> None:
    free = {"GPU-0": _tickets(0, 10), "GPU-1": _tickets(1, 10)}
    must = [Ticket("GPU-0", 8), Ticket("GPU-0", 9)]
    assert pick(Demand(5, 4), CORE, ["GPU-0"], free=free, must=must) == [*must, *_tickets(0, 3)]
    assert pick(Demand(200, 4), MEMORY, ["GPU-0", "GPU-1"], free=free, must=must) == [
        *must,
        *_tickets(1, 2),
    ]


def test_more_places_of_a_card_than_its_part_that_must_be_taken_come_off_the_other() -> None:
    free = {"GPU-0": _tickets(0, 10), "GPU-1": _tickets(1, 10)}
    must = _tickets(0, 3)
    assert pick(Demand(200, 4), MEMORY, ["GPU-0", "GPU-1"], free=free, must=must) == [
        *must,
        Ticket("GPU-1", 0),
    ]


def test_more_places_that_must_be_taken_than_asked_for_are_all_taken() -> None:
    must = _tickets(0, 3)
    assert pick(Demand(50, 2), MEMORY, ["GPU-0"], free={"GPU-0": must}, must=must) == must


def test_too_few_places_are_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        pick(Demand(200, 5), MEMORY, ["GPU-0", "GPU-1"], free={"GPU-0": _tickets(0, 9)})
    assert str(caught.value) == (
        "5 places of memory were asked for on GPU-0, GPU-1, 3 are free there"
    )


# --- whatever comes ------------------------------------------------------------------

_states = st.lists(
    st.builds(
        _state,
        st.integers(0, 7),
        st.sampled_from([0, 10, 50, 99, 100]),
        st.integers(0, 10),
        healthy=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda state: state.index,
)
_demands = st.builds(Demand, st.sampled_from([1, 10, 50, 99, 100, 200, 300]), st.integers(0, 12))
_cards = st.lists(st.builds("GPU-{}".format, st.integers(0, 7)), max_size=2, unique=True)


@patient
@given(
    demand=_demands,
    states=_states,
    policy=st.sampled_from(Policy),
    fixed=_cards,
    must=_cards,
    data=st.data(),
)
def test_what_is_placed_fits_and_what_fits_is_placed_whatever_the_order(
    *,
    demand: Demand,
    states: list[CardState],
    policy: Policy,
    fixed: list[str],
    must: list[str],
    data: st.DataObject,
) -> None:
    need = _need(demand.cores, demand.memory)
    within = [
        state.uuid
        for state in states
        if state.healthy
        and all(state.free[each] >= need.per_card[each] for each in Resource)
        and (not fixed or state.uuid in fixed)
    ]
    bound = {*fixed, *must}
    possible = len(within) >= demand.cards and bound <= set(within) and len(bound) <= demand.cards
    try:
        cards = place(need, states, policy=policy, fixed=fixed, must=must)
    except PlacementError:
        assert not possible
        return
    assert possible
    assert len(set(cards)) == len(cards) == demand.cards
    assert set(cards) <= set(within)
    assert bound <= set(cards)
    assert list(cards) == sorted(cards)
    shuffled = data.draw(st.permutations(states))
    assert place(need, shuffled, policy=policy, fixed=fixed[::-1], must=must[::-1]) == cards
