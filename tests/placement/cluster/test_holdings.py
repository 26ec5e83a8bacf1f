"""The cards that a pod holds: by record, by choice, simulated."""

import tracemalloc
from typing import Any

import pytest

from contract.inventory import Amounts
from placement.cluster.holdings import (
    ContainerCards,
    Provenance,
    held_by_container,
    held_by_pod,
    known_cards,
    simulate,
)
from placement.pods import PodInfo
from placement.scoring import Policy
from scheduler.state import State
from tests.placement.cluster.builders import NAMES, a_node, a_pod, hint, make_node, make_pod, record
from tests.scheduler.states import free_amounts

ONE, TWO, GONE = "GPU-n1-0", "GPU-n1-1", "GPU-gone-0"


def on(*cards: int) -> ContainerCards:
    return ContainerCards(cards, Provenance.RECORDED)


FREE = [Amounts(100, 32), Amounts(100, 32)]


def test_the_allocation_annotation_overrides_the_choice() -> None:
    annotations = record(c0=([TWO], 30, 4)) | hint("0", "0")
    pod = a_pod("a", (30, 4), (40, 4), annotations=annotations)
    assert known_cards(pod, a_node("n1")) == {
        "c0": ContainerCards((1,), Provenance.RECORDED),
        "c1": ContainerCards((0,), Provenance.CHOSEN),
    }


def test_a_recorded_card_that_the_node_lacks_is_lost_and_a_chosen_one_is_ignored() -> None:
    node = a_node("n1")
    assert known_cards(a_pod("a", (30, 4), annotations=record(c0=(["X"], 30, 4))), node) == {
        "c0": ContainerCards((), Provenance.RECORDED, ("X",))
    }
    assert known_cards(a_pod("a", (30, 4), annotations=hint("7")), node) is None
    assert known_cards(a_pod("a", (200, 4), annotations=hint("0")), node) is None


def test_an_init_container_without_a_record_beside_others_holds_nothing_known() -> None:
    node = a_node("n1")
    pod = a_pod("a", (30, 4), inits=[(50, 4)], annotations=record(c0=([TWO], 30, 4)))
    assert known_cards(pod, node) == {"c0": ContainerCards((1,), Provenance.RECORDED)}
    assert known_cards(a_pod("a", (30, 4), inits=[(50, 4)], annotations=hint("1")), node) is None


def test_slots_of_init_containers_are_reused_and_kept() -> None:
    """Facts K4 and K7; sidecars and containers keep theirs beside each other."""
    pod = a_pod("a", (30, 4), (20, 2), inits=[(40, 8)], sidecars=[(10, 1)])
    on_one = dict.fromkeys(("i0", "s0", "c0", "c1"), on(0))
    assert held_by_pod(pod.demand, on_one) == {0: (60, 8)}
    elsewhere = on_one | {"i0": on(1)}
    assert held_by_pod(pod.demand, elsewhere) == {0: (60, 7), 1: (40, 8)}


def test_reusable_slots_are_used_before_free_ones_on_other_cards() -> None:
    """The kubelet prefers them (K7): no block of the second card is taken."""
    pod = a_pod("a", (200, 8), inits=[(100, 9)])
    assert held_by_pod(pod.demand, {"i0": on(0), "c0": on(0, 1)}) == {0: (100, 9), 1: (100, 0)}


def test_an_unreported_pod_counts_where_the_agent_would_place_it() -> None:
    node = a_node("n1")
    pod = a_pod("a", (30, 4))
    free = [Amounts(100, 32), Amounts(40, 8)]
    assert simulate(pod, node, free, Policy.BINPACK)[1] == {1: (30, 4)}
    assert simulate(pod, node, free, Policy.SPREAD)[1] == {0: (30, 4)}


def test_reported_containers_of_a_pod_are_kept_when_the_others_are_simulated() -> None:
    pod = a_pod("a", (30, 4), (60, 4), annotations=hint("1"))
    assert simulate(pod, a_node("n1"), FREE, Policy.BINPACK)[1] == {1: (90, 8)}


def test_a_pod_that_fits_nowhere_counts_on_the_emptiest_cards() -> None:
    """The agent refuses it, or knows more: until then no other pod goes there."""
    node = a_node("n1")
    free = [Amounts(50, 8), Amounts(20, 8)]
    assert simulate(a_pod("a", (60, 4)), node, free, Policy.BINPACK)[1] == {0: (60, 4)}
    two = simulate(a_pod("b", (200, 4)), node, free, Policy.BINPACK)[1]
    assert two == {0: (100, 2), 1: (100, 2)}


def test_a_share_of_several_cards_counts_in_equal_parts() -> None:
    node = a_node("n1", 3)
    free = [Amounts(100, 32), Amounts(70, 32), Amounts(60, 32)]

    def pod(annotations: dict[str, str]) -> PodInfo:
        return a_pod("a", (100, 8), split={"c0": 2}, annotations=annotations)

    for annotations, source in (
        (record(c0=([ONE, TWO], 100, 8)), Provenance.RECORDED),
        (hint("0,1"), Provenance.CHOSEN),
    ):
        known = known_cards(pod(annotations), node)
        assert known == {"c0": ContainerCards((0, 1), source)}
        assert held_by_pod(pod({}).demand, known) == {0: (50, 4), 1: (50, 4)}
    assert known_cards(pod(hint("0")), node) is None, "half of what it requests"
    assert known_cards(pod(record(c0=([ONE], 100, 8))), node) is None
    half = known_cards(pod(record(c0=([ONE, "X"], 100, 8))), node)
    assert half is not None
    assert held_by_pod(pod({}).demand, half) == {0: (50, 4)}, "the other is lost"
    assert simulate(pod({}), node, free, Policy.BINPACK)[1] == {1: (50, 4), 2: (50, 4)}
    assert simulate(pod({}), node, free, Policy.SPREAD)[1] == {0: (50, 4), 1: (50, 4)}
    full = [Amounts(40, 32), Amounts(100, 32), Amounts(20, 32)]
    assert simulate(pod({}), node, full, Policy.BINPACK)[1] == {0: (50, 4), 1: (50, 4)}


def test_a_share_reuses_equal_parts_of_what_init_containers_left() -> None:
    pod = a_pod("a", (60, 8), inits=[(100, 8)], split={"c0": 2, "i0": 2})
    both = {"i0": on(0, 1), "c0": on(0, 1)}
    assert held_by_container(pod.demand, both) == {
        ("i0", 0): (20, 0),
        ("i0", 1): (20, 0),
        ("c0", 0): (30, 4),
        ("c0", 1): (30, 4),
    }
    assert held_by_pod(pod.demand, both) == {0: (50, 4), 1: (50, 4)}


def test_a_pod_that_requests_millions_of_cards_costs_no_more_than_another() -> None:
    """The webhook lets any int32 pass, and only a kubelet keeps a pod off a named node."""
    tracemalloc.start()
    try:
        pod = a_pod("a", (2_147_483_600, 5), node="n1")
        assert pod.pod_class.problem == ""
        taken = simulate(pod, a_node("n1"), FREE, Policy.BINPACK)[1]
        assert taken == {0: (100, 1), 1: (100, 1)}
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# --- a recorded card that is not on the node any more --------------------------------------

ALL, HALF = (100, 32), (50, 24)


def free_beside(*pods: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """What the extender counts as free on a node of two cards, of 100 cores and 32 blocks."""
    state = State(NAMES)
    state.put_node(make_node("n1", 2))
    for pod in pods:
        state.put_pod(pod)
    return tuple(free_amounts(state) or ())


WITH_INIT = {"inits": [(60, 9)]}


@pytest.mark.parametrize(
    ("more", "annotations", "free"),
    [
        ({}, record(c0=([GONE], 50, 8)), (ALL, ALL)),
        ({}, record(c0=([GONE], 50, 8)) | hint("0"), (ALL, ALL)),  # that is another card's now
        (WITH_INIT, record(c0=([GONE], 50, 8), i0=([GONE], 60, 9)), (ALL, ALL)),
        (WITH_INIT, record(c0=([GONE], 50, 8)), (ALL, ALL)),  # cards of the other: unknown (K4)
        (WITH_INIT, record(c0=([TWO], 50, 8), i0=([GONE], 60, 9)), (ALL, HALF)),
        ({}, hint("7"), (HALF, ALL)),  # chosen, and never there
    ],
)
def test_a_pod_on_a_card_that_is_not_there_counts_on_no_other(
    more: dict[str, Any], annotations: dict[str, str], free: tuple[tuple[int, int], ...]
) -> None:
    pod = make_pod("a", (50, 8), node="n1", annotations=annotations, **more)
    assert free_beside(pod) == free


def test_the_other_cards_and_containers_of_a_pod_count() -> None:
    two = make_pod("a", (200, 8), node="n1", annotations=record(c0=([GONE, TWO], 200, 8)))
    assert free_beside(two) == (ALL, (0, 28))
    recorded = record(c0=([GONE], 50, 8), c1=([TWO], 50, 8))
    both = make_pod("a", (50, 8), (50, 8), node="n1", annotations=recorded)
    assert free_beside(both) == (ALL, HALF)


def test_unreported_containers_of_such_a_pod_are_expected_on_the_remaining_cards() -> None:
    """The agent writes all containers at once; a manifest may bring a part of a record."""
    pod = make_pod("a", (50, 8), (50, 8), node="n1", annotations=record(c0=([GONE], 50, 8)))
    assert free_beside(pod) == (HALF, ALL)
