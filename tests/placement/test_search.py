"""A search for the cards of a whole pod: policies, links, init containers, and refusals."""

from dataclasses import replace
from itertools import combinations

import pytest

from contract.inventory import Amounts, Inventory, Link
from placement.scoring import Policy
from placement.search import ContainerPlan
from placement.topology import Links
from tests.agent.builders import INIT, MAIN, MEMORY, card
from tests.placement.searches import Room, plan, planned, pod, refusal, room

# --- the whole pod -------------------------------------------------------------------


def test_shares_of_one_pod_that_are_spread_are_on_different_cards_if_these_are_as_good() -> None:
    capacities = [room(0), room(1, 50, 5), room(2, 20, 2)]
    spread = planned(pod((50, 5), (50, 5)), capacities, policy=Policy.SPREAD)
    assert spread == {"c0": [0], "c1": [1]}


def test_whole_cards_of_less_memory_are_left_to_pods_that_need_less() -> None:
    capacities = [room(0, memory=10), room(1, memory=4), room(2, memory=10)]
    assert planned(pod((100, 2), (200, 20)), capacities) == {"c0": [1], "c1": [0, 2]}
    assert planned(pod((100, 2), (100, 4), (100, 8)), capacities) == {
        "c0": [0],
        "c1": [1],
        "c2": [2],
    }


def test_whole_cards_are_the_best_connected() -> None:
    links = Links(Inventory(tuple(map(card, range(4))), (Link((1, 3), "NV4"),)))
    capacities = [room(index) for index in range(4)]
    assert planned(pod((200, 0), (100, 0)), capacities, links=links) == {"c0": [1, 3], "c1": [0]}
    assert planned(pod((100, 0), (200, 0)), capacities, links=links) == {"c0": [0], "c1": [1, 3]}


def test_cards_that_must_be_connected_are_or_there_is_no_plan() -> None:
    links = Links(Inventory(tuple(map(card, range(4))), (Link((0, 1), "PIX"), Link((2, 3), "NV4"))))
    (step,) = pod((200, 0))
    rooms = [room(each) for each in range(4)]
    strict = replace(step, link="nvlink")
    assert planned([strict], rooms, links=links) == {"c0": [2, 3]}
    assert refusal([strict], rooms[:3], links=links) == (
        "no card fits 200 cores: no 2 of 3 fitting cards are connected by "
        "NVLink (gpu-link: nvlink); 3 cards: fits"
    )
    chosen = replace(strict, chosen=("GPU-0", "GPU-1"))
    assert planned([chosen], rooms, links=links) == {"c0": [2, 3]}
    assert "gpu-link" not in refusal([strict], rooms[:1], links=links)
    share = replace(pod((50, 2))[0], link="nvlink")
    assert planned([share], rooms[:1], links=links) == {"c0": [0]}


def test_a_share_of_several_cards_has_equal_parts_of_different_cards() -> None:
    assert plan(pod((60, 6, INIT, 2), (80, 6, MAIN, 2)), [room(0), room(1, 40, 3)]) == (
        ContainerPlan((0, 1), (Amounts(30, 3), Amounts(30, 3))),
        ContainerPlan((0, 1), (Amounts(10, 0), Amounts(10, 0))),
    )
    assert refusal(pod((80, 4, MAIN, 2)), [room(0), room(1, 39)]) == (
        "no card fits 80 cores and 4 memory blocks over 2 cards: 2 cards needed, 1 found; "
        "GPU-0: fits; GPU-1: 39 of 40 cores free"
    )


# --- one container -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "capacities", "expected"),
    [
        (Policy.BINPACK, [room(0), room(1, 60), room(2, 80)], 1),
        (Policy.BINPACK, [room(0, 60, 10), room(1, 60, 5)], 1),
        (Policy.BINPACK, [room(0, 60, 5), room(1, 60, 5)], 0),
        (Policy.SPREAD, [room(0, 60), room(1), room(2, 80)], 1),
        (Policy.SPREAD, [room(0, 80, 5), room(1, 80, 10)], 1),
    ],
)
def test_a_share_goes_to_the_fullest_or_emptiest_card_that_fits_then_by_index(
    policy: Policy, capacities: list[Room], expected: int
) -> None:
    for order in (capacities, capacities[::-1]):
        assert planned(pod((50, 4)), order, policy=policy) == {"c0": [expected]}


def test_whole_cards_are_the_first_free_ones_with_room_for_their_part_of_the_memory() -> None:
    capacities = [room(3), room(2, 99), room(1), room(0, memory=3)]
    for policy in Policy:
        assert planned(pod((200, 6)), capacities, policy=policy) == {"c0": [0, 1]}
    assert planned(pod((200, 7)), capacities) == {"c0": [1, 3]}


# --- K7: init containers -------------------------------------------------------------


def test_reusable_slots_of_init_containers_bind_the_next_container() -> None:
    capacities = [room(0), room(1, 20, 2, left=(10, 1))]
    assert planned(pod((30, 2)), capacities) == {"c0": [1]}
    assert "GPU-1: 30 of 31 cores free" in refusal(pod((31, 2)), capacities)


def test_reusable_slots_of_two_cards_may_be_planned_if_no_certain_plan_exists() -> None:
    """Of whole cards the kubelet may hand any slots to a share: it is not refused for that."""
    capacities = [room(0, 0, left=(100, 0)), room(1, 0, left=(100, 0))]
    assert "devices of 2 cards must be reused" in refusal(pod((50, 2)), capacities)
    assert planned(pod((50, 2)), capacities, guaranteed=False) == {"c0": [0]}


# --- what a container is bound to ----------------------------------------------------


def test_a_container_is_bound_to_the_card_that_it_holds() -> None:
    (step,) = pod((90, 4))
    need = step.need._replace(per_card=Amounts(0, 4))
    bound = replace(step, need=need, lacking=frozenset({MEMORY}), fixed=(1,))
    assert planned([bound], [room(0), room(1, 10)]) == {"c0": [1]}
    assert refusal([bound], [room(0), room(1, 10, 3)]) == (
        "no card fits 90 cores and 4 memory blocks: GPU-1: 3 of 4 memory blocks free"
    )


# --- a scheduler's choice ------------------------------------------------------------


def test_the_choice_of_a_scheduler_is_followed_where_it_fits() -> None:
    capacities = [room(0, 60), room(1), room(2)]
    assert planned(pod((50, 2), chosen=("GPU-2",)), capacities) == {"c0": [2]}
    assert planned(pod((200, 2), chosen=("GPU-2", "GPU-1")), capacities) == {"c0": [1, 2]}
    assert planned(pod((200, 2), chosen=("GPU-2", "GPU-0")), capacities) == {"c0": [1, 2]}
    assert planned(pod((50, 2), chosen=("GPU-2", "GPU-1")), capacities) == {"c0": [0]}
    assert planned(pod((50, 2), chosen=("card 9",)), capacities) == {"c0": [0]}


def test_a_strict_choice_that_does_not_fit_is_refused_with_both_sides_named() -> None:
    steps = pod((50, 2), chosen=("GPU-1",), strict=True)
    assert planned(steps, [room(0), room(1)]) == {"c0": [1]}
    assert refusal(steps, [room(0), room(1, 40)]) == (
        "no card fits 50 cores and 2 memory blocks: "
        "GPU-1: 40 of 50 cores free; a scheduler chose GPU-1 by predicate-gpu-idx-0, which is "
        "followed strictly; GPU-0 would fit"
    )
    assert refusal(steps, [room(0, 10), room(1, 40)]).endswith(
        "followed strictly; no other would fit"
    )


# --- refusals and limits -------------------------------------------------------------


def test_a_refusal_has_a_reason_for_each_card_and_counts_those_that_fit() -> None:
    assert refusal(pod((200, 0)), [room(1), room(0, 99)]) == (
        "no card fits 200 cores: 2 cards needed, 1 found; GPU-0: 99 of 100 cores free; GPU-1: fits"
    )
    bound = pod((50, 4), fixed=(0,), must=(1,))
    assert refusal(bound, [room(0), room(1, 10)]) == (
        "no card fits 50 cores and 4 memory blocks: "
        "GPU-0: init containers of the pod had another card, whose devices the kubelet reuses; "
        "GPU-1: the container already has cores or memory of another card"
    )
    assert refusal(pod((50, 4), must=(0, 1)), [room(0), room(1)]) == (
        "no card fits 50 cores and 4 memory blocks: devices of 2 cards must be reused; "
        "2 cards: fits"
    )


def test_cards_with_the_same_shortfall_are_reported_together() -> None:
    """A node may have sixteen, and an Event has room for 1,024 characters."""
    capacities = [room(each, cores=40 - each) for each in range(6)]
    capacities += [room(6, excluded="nouse-gpu-type"), room(7, memory=3)]
    assert refusal(pod((50, 4)), capacities) == (
        "no card fits 50 cores and 4 memory blocks: 6 cards: at most 40 of 50 "
        "cores free; GPU-6: excluded by nouse-gpu-type; GPU-7: 3 of 4 memory blocks free"
    )


@pytest.mark.parametrize(("memory", "explained"), [(40, False), (41, True)])
def test_more_memory_than_whole_cards_have_is_explained(memory: int, explained: bool) -> None:
    capacities = [room(each, unhealthy="unhealthy (Xid 79)") for each in range(4)]
    last = "; no card has more than 10 memory blocks, and a whole card comes with all its memory"
    assert refusal(pod((400, memory)), capacities).endswith(last) == explained


def test_a_search_that_takes_too_long_is_given_up() -> None:
    steps, capacities = pod((60, 2), (60, 2)), [room(0), room(1)]
    assert plan(steps, capacities, most_tries=2) is not None
    assert plan(steps, capacities, most_tries=1) is None
    many, cards = pod(*[(1, 1)] * 1200), [room(index, 100, 100) for index in range(12)]
    assert plan(many, cards, most_tries=20_000, size=100) is None


# --- many cards -------------------------------------------------------------------------

_SIXTEEN = [room(at, cores=61 + at, memory=10 + at) for at in range(16)]
"""Cards of which no two are alike: there are 12,870 ways to take eight."""


@pytest.mark.parametrize("link", ["", "numa"])
@pytest.mark.parametrize("policy", [*Policy, None])
def test_eight_of_sixteen_cards_are_found_with_few_tries(link: str, policy: Policy | None) -> None:
    numa = [replace(card(at), numa=at % 2) for at in range(16)]
    pairs = [Link(pair, "PIX") for pair in combinations(range(16), 2) if sum(pair) % 3]
    links = Links(Inventory(tuple(numa), tuple(pairs)))
    limits = [(60 * 8, 16, MAIN, 8), (30 * 8, 8, MAIN, 8), (30 * 8, 8, MAIN, 8)]
    steps = [replace(step, link=link) for step in pod(*limits)]
    found = plan(steps[:2], _SIXTEEN, links=links, policy=policy, size=30, most_tries=2)
    assert found is not None
    both = plan(steps[1:], _SIXTEEN, links=links, policy=policy, size=30, most_tries=2)
    assert both is not None
    assert plan(steps, _SIXTEEN, links=links, policy=policy, size=30, most_tries=20) is not None


def test_a_search_for_links_is_given_up_after_too_many_sets_without_them() -> None:
    """Each set of a chain of cards is connected only if it has no gap."""
    chain = [Link((at, at + 1), "NV1") for at in range(15)]
    links = Links(Inventory(tuple(map(card, range(16))), tuple(chain)))
    steps = [replace(step, link="nvlink") for step in pod(*[(60 * 8, 8, MAIN, 8)] * 3)]
    assert plan(steps, _SIXTEEN, links=links, size=30, most_tries=20) is None


def test_a_search_on_sixteen_cards_tries_few_of_many_combinations() -> None:
    """Cards that are alike are tried once: 17 shares on 16 cards are 16! ways otherwise."""
    capacities = [room(index, 70, 10) for index in range(16)]
    steps = pod(*[(60, 1)] * 17)
    assert " of container c16, with c0, c1, " in refusal(steps, capacities)
