"""A pod whose recorded card is not on its node any more: it holds nothing of any other card."""

from typing import Any

from scheduler.state import State
from tests.agent.builders import cases
from tests.placement.cluster.builders import NAMES, hint, make_node, make_pod, record
from tests.scheduler.states import free_amounts

ONE, TWO, GONE = "GPU-n1-0", "GPU-n1-1", "GPU-gone-0"
ALL, HALF = (100, 32), (50, 24)


def free_beside(*pods: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """What the extender counts as free on a node of two cards, of 100 cores and 32 blocks."""
    state = State(NAMES)
    state.put_node(make_node("n1", 2))
    for pod in pods:
        state.put_pod(pod)
    return tuple(free_amounts(state) or ())


WITH_INIT = {"inits": [(60, 9)]}
CASES: dict[str, tuple[dict[str, Any], dict[str, str], tuple[tuple[int, int], ...]]] = {
    "its only card": ({}, record(c0=([GONE], 50, 8)), (ALL, ALL)),
    "swapped: its index is another card's now": (
        {},
        record(c0=([GONE], 50, 8)) | hint("0"),
        (ALL, ALL),
    ),
    "with an init container": (
        WITH_INIT,
        record(c0=([GONE], 50, 8), i0=([GONE], 60, 9)),
        (ALL, ALL),
    ),
    "with an init container whose cards are unknown (K4)": (
        WITH_INIT,
        record(c0=([GONE], 50, 8)),
        (ALL, ALL),
    ),
    "an init container's alone": (
        WITH_INIT,
        record(c0=([TWO], 50, 8), i0=([GONE], 60, 9)),
        (ALL, HALF),
    ),
    "chosen, and never there": ({}, hint("7"), (HALF, ALL)),
}


@cases("more, annotations, free", CASES)
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
