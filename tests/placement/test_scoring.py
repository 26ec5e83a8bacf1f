from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.demand import Demand
from contract.resource import Resource
from placement.capacity import CardState, Need, need_of
from placement.cards import Inventory
from placement.errors import NoPlacement
from placement.scoring import Policy
from placement.topology import Links
from tests.agent.builders import CORE, MEMORY
from tests.placement.placing import place as place_on

LINKS = Links(Inventory(()))
"""Nothing is known of how cards are connected: the first ones are as good as any."""


def _state(
    index: int, cores: int = 100, memory: int = 10, *, unhealthy: str = "", excluded: str = ""
) -> CardState:
    free, places = {CORE: cores, MEMORY: memory}, {CORE: 100, MEMORY: 10}
    return CardState(f"GPU-{index}", index, free, places, unhealthy, excluded)


def _need(cores: int, memory: int) -> Need:
    return need_of(Demand(cores, memory))


def place(need: Need, states: Sequence[CardState], **given: Any) -> tuple[str, ...]:
    return place_on(need, states, links=given.pop("links", LINKS), **given)


def _refusal(need: Need, states: Sequence[CardState], **bound: Any) -> str:
    with pytest.raises(NoPlacement) as caught:
        place(need, states, **bound)
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
        (Policy.SPREAD, [_state(0, unhealthy="Xid 79"), _state(1, 50)], "GPU-1"),
    ],
)
def test_a_share_goes_to_the_fullest_or_emptiest_card_that_fits_then_by_index(
    policy: Policy, states: list[CardState], expected: str
) -> None:
    assert place(_need(50, 4), states, policy=policy) == (expected,)
    assert place(_need(50, 4), states[::-1], policy=policy) == (expected,)


@pytest.mark.parametrize("bound", ["fixed", "must"])
def test_a_share_follows_its_other_resource_and_the_places_that_are_handed_on(bound: str) -> None:
    states = [_state(0, 60), _state(1)]
    assert place(_need(50, 4), states, **{bound: ["GPU-1"]}) == ("GPU-1",)


# --- whole cards ---------------------------------------------------------------------


def test_whole_cards_are_the_first_free_ones() -> None:
    states = [_state(3), _state(2, 99), _state(1), _state(0)]
    assert place(_need(200, 0), states) == ("GPU-0", "GPU-1")
    assert place(_need(200, 0), states, policy=Policy.SPREAD) == ("GPU-0", "GPU-1")


def test_whole_cards_need_room_for_their_part_of_the_memory() -> None:
    states = [_state(0, memory=3), _state(1), _state(2)]
    assert place(_need(200, 6), states) == ("GPU-0", "GPU-1")
    assert place(_need(200, 7), states) == ("GPU-1", "GPU-2")


# --- refusals ------------------------------------------------------------------------


def test_a_refusal_says_for_each_card_why_not() -> None:
    states = [_state(1, 40), _state(0, 60, 3), _state(2, unhealthy="Xid 79")]
    assert _refusal(_need(50, 4), states) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; "
        "GPU-0: 3 of 4 memory blocks free; GPU-1: 40 of 50 cores free; GPU-2: unhealthy (Xid 79)"
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


def test_cards_that_lack_the_same_are_told_of_together() -> None:
    """A node may have sixteen, and an Event has room for 1,024 characters."""
    states = [_state(each, cores=40 - each) for each in range(6)]
    states += [_state(6, excluded="nouse-gpu-type"), _state(7, memory=3)]
    assert _refusal(_need(50, 4), states) == (
        "no card fits 50 cores and 4 memory blocks: 0 of 1 cards found; 6 cards: at most 40 of 50 "
        "cores free; GPU-6: excluded by nouse-gpu-type; GPU-7: 3 of 4 memory blocks free"
    )


@pytest.mark.parametrize(("memory", "told"), [(40, False), (41, True)])
def test_more_memory_than_whole_cards_have_is_said(memory: int, told: bool) -> None:
    states = [_state(each, unhealthy="Xid 79") for each in range(4)]
    last = "; no card has more than 10 blocks, and whole cards have all of theirs"
    assert _refusal(_need(400, memory), states).endswith(last) == told


def test_a_share_that_would_be_split_is_refused() -> None:
    assert _refusal(_need(50, 4), [_state(0), _state(1)], must=["GPU-0", "GPU-1"]) == (
        "no card fits 50 cores and 4 memory blocks: places of 2 cards must be taken; 2 cards: fits"
    )


@pytest.mark.parametrize(("cores", "memory"), [(0, 4), (150, 4), (101, 0)])
def test_what_the_webhook_refuses_the_agent_does_not_place_either(cores: int, memory: int) -> None:
    with pytest.raises(NoPlacement) as caught:
        _need(cores, memory)
    assert str(caught.value) == (
        f"{cores} cores and {memory} memory blocks fit no card: a share of one card is 1 to 99 "
        "cores, whole cards are a multiple of 100"
    )


# --- what each card must have -------------------------------------------------------


def test_whole_cards_need_every_core_and_the_largest_part_of_the_memory() -> None:
    assert _need(300, 7).per_card == {CORE: 100, MEMORY: 3}
    assert _need(300, 0).per_card == {CORE: 100, MEMORY: 0}


# --- whatever comes ------------------------------------------------------------------

_states = st.lists(
    st.builds(
        _state,
        st.integers(0, 7),
        st.sampled_from([0, 10, 50, 99, 100]),
        st.integers(0, 10),
        unhealthy=st.sampled_from(["", "Xid 79"]),
        excluded=st.sampled_from(["", "", "use-gpu-uuid"]),
    ),
    max_size=6,
    unique_by=lambda state: state.index,
)
_demands = st.builds(Demand, st.sampled_from([1, 10, 50, 99, 100, 200, 300]), st.integers(0, 12))
_cards = st.lists(st.builds("GPU-{}".format, st.integers(0, 7)), max_size=2, unique=True)


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
        if not state.unhealthy
        and not state.excluded
        and all(state.free[each] >= need.per_card[each] for each in Resource)
        and (not fixed or state.uuid in fixed)
    ]
    bound = {*fixed, *must}
    possible = len(within) >= demand.cards and bound <= set(within) and len(bound) <= demand.cards
    try:
        cards = place(need, states, policy=policy, fixed=fixed, must=must)
    except NoPlacement:
        assert not possible
        return
    assert possible
    assert len(set(cards)) == len(cards) == demand.cards
    assert set(cards) <= set(within)
    assert bound <= set(cards)
    assert list(cards) == sorted(cards)
    shuffled = data.draw(st.permutations(states))
    assert place(need, shuffled, policy=policy, fixed=fixed[::-1], must=must[::-1]) == cards
