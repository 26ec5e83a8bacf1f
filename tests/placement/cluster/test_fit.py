"""Whether a pod fits: tables with the exact words, and the agent as the oracle."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.resource import Resource
from contract.wishes import LINKS
from placement.cluster.fit import Fit, Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, a_node, a_pod

MIXED = ("NVIDIA A100", "Tesla T4", "Tesla T4")


def wish(**wishes: str) -> dict[str, str]:
    return {getattr(NAMES, name): value for name, value in wishes.items()}


ALL = [(100, 32), (100, 32)]


@pytest.mark.parametrize(
    ("pod", "free", "reason"),
    [
        (a_pod("a", (60, 20)), [(59, 32), (100, 19)], "no card has 60 cores and 20 blocks free"),
        (a_pod("a", (100, 0)), [(99, 32), (50, 32)], "no card has 100 cores free"),
        (
            *(a_pod("a", (200, 9)), [(100, 32), (100, 4)]),
            "fewer than 2 cards have 100 cores and 5 blocks free",
        ),
        (
            *(a_pod("a", (60, 4), (60, 4), (30, 4)), [(80, 32), (60, 32)]),
            "no card is left for one of 3 containers",
        ),
        (
            *(a_pod("a", (100, 20), split={"c0": 2}), [(90, 32), (49, 32)]),
            "fewer than 2 cards have 50 cores and 10 blocks free",
        ),
        (
            *(a_pod("a", (100, 20), (60, 2), split={"c0": 2}), [(100, 32), (50, 32)]),
            "no card is left for one of 2 containers",
        ),
    ],
)
def test_full_cards_are_reported_with_what_is_needed(
    pod: PodInfo, free: list[tuple[int, int]], reason: str
) -> None:
    found = check(pod.pod_class, NodeSnapshot(a_node("n1", 2), free))
    assert found == Unschedulable(reason, unresolvable=False)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (a_pod("a", (60, 40)), "no card has 40 blocks"),
        (a_pod("a", (300, 4)), "fewer than 3 cards"),
        (a_pod("a", (90, 6), split={"c0": 3}), "fewer than 3 cards"),
        (a_pod("a", (80, 80), split={"c0": 2}), "no card has 40 blocks"),
        (a_pod("a", (150, 4)), "150 cores and 4 memory blocks fit no"),
    ],
)
def test_requests_that_the_node_can_never_serve_are_distinguished(
    pod: PodInfo, reason: str
) -> None:
    found = check(pod.pod_class, NodeSnapshot(a_node("n1", 2), ALL))
    assert isinstance(found, Unschedulable)
    assert found.unresolvable
    assert found.reason.startswith(reason)


def test_a_node_on_which_some_cards_are_too_small_has_fewer_not_none() -> None:
    """Of whole cards, and of shares of several."""
    snapshot = NodeSnapshot(a_node("n1", 2, blocks=[32, 16]), [(100, 32), (100, 16)])
    for pod in (a_pod("a", (200, 40)), a_pod("a", (100, 40), split={"c0": 2})):
        assert check(pod.pod_class, snapshot) == Unschedulable(
            "fewer than 2 cards have 20 blocks", unresolvable=True
        )


@pytest.mark.parametrize(
    ("wishes", "cores", "reason", "unresolvable"),
    [
        (wish(use_gpu_type="h100,h200"), 30, "no card of type h100 or h200", True),
        (wish(use_gpu_type="a100"), 200, "fewer than 2 cards of type a100", True),
        (wish(use_gpu_type="t4"), 60, "no card of type t4 has 60 cores and 4 blocks free", False),
        (wish(use_gpu_uuid="GPU-x"), 30, "no card that use-gpu-uuid names", True),
        (wish(nouse_gpu_type="a100,t4"), 30, "no card that nouse-gpu-type allows", True),
    ],
)
def test_an_impossible_wish_is_distinguished_from_full_cards(
    wishes: dict[str, str], cores: int, reason: str, *, unresolvable: bool
) -> None:
    node = a_node("n1", 3, models=MIXED)
    free = [(100, 32), (20, 32), (20, 32)]
    found = check(a_pod("a", (cores, 4), annotations=wishes).pod_class, NodeSnapshot(node, free))
    assert found == Unschedulable(reason, unresolvable)


def test_cards_that_must_be_connected_are_needed_as_a_set() -> None:
    node, nvlink = a_node("n1", 4, links={(0, 1): "NV4", (2, 3): "NV4"}), wish(gpu_link="nvlink")
    view = NodeSnapshot(node, [(100, 32), (50, 32), (100, 32), (50, 32)])
    pair = a_pod("a", (200, 4), annotations=nvlink)
    halves = a_pod("b", (120, 4), split={"c0": 2}, annotations=nvlink)
    for pod, needed in ((pair, "are free"), (halves, "have 60 cores and 2 blocks free")):
        reason = f"no 2 cards connected by NVLink {needed}"
        assert check(pod.pod_class, view) == Unschedulable(reason, unresolvable=False)
    for pod in (a_pod("c", (200, 4)), a_pod("d", (100, 4), annotations=nvlink)):
        assert check(pod.pod_class, view) == Fit()


@patient
@given(st.data())
def test_a_set_that_must_be_connected_fits_if_and_only_if_trying_all_finds_one(
    data: st.DataObject,
) -> None:
    """By the extender, and by the plan that the agent makes."""
    ways = st.sampled_from(["SYS", "NODE", "PIX", "NV1"])
    node = a_node("n1", 5, links={pair: data.draw(ways) for pair in combinations(range(5), 2)})
    free = [(data.draw(st.sampled_from([40, 100])), 32) for _ in node.cards]
    size, link = data.draw(st.integers(2, 4)), data.draw(st.sampled_from(LINKS))
    each = data.draw(st.sampled_from([100, 60, 40]))
    split = {} if each == 100 else {"c0": size}
    pod = a_pod("a", (each * size, 4 * size), split=split, annotations=wish(gpu_link=link))
    fitting = [at for at, (cores, _) in enumerate(free) if cores >= each]
    links, view = node.card_set.links, NodeSnapshot(node, free)
    possible = any(links.fulfils(each, link) for each in combinations(fitting, size))
    assert isinstance(check(pod.pod_class, view), Fit) == possible
    try:
        planned = plan_pod(pod, node, view.free, Policy.BINPACK)
    except NoPlacement:
        planned = None
    assert (planned is not None) == possible


@pytest.mark.parametrize(
    ("unhealthy", "cordoned", "cores", "reason"),
    [
        ([0, 1], [], 30, "no healthy card"),
        ([1], [], 200, "fewer than 2 healthy cards"),
        ([], [1], 200, "fewer than 2 uncordoned cards"),
        ([0], [0, 1], 30, "no healthy and uncordoned card"),
    ],
)
def test_withheld_cards_are_given_to_no_pod(
    unhealthy: list[int], cordoned: list[int], cores: int, reason: str
) -> None:
    node = a_node("n1", 2, unhealthy=unhealthy, cordoned=cordoned)
    found = check(a_pod("a", (cores, 4)).pod_class, NodeSnapshot(node, node.sizes))
    assert found == Unschedulable(reason, unresolvable=True)


def test_a_fit_counts_newly_shared_cards() -> None:
    node, pod = a_node("n1", 2), a_pod("a", (30, 4))
    assert check(pod.pod_class, NodeSnapshot(node, [(100, 32), (50, 32)])) == Fit(0)
    assert check(pod.pod_class, NodeSnapshot(node, [(100, 32), (20, 32)])) == Fit(1)
    two = a_pod("b", (60, 4), (60, 4))
    assert check(two.pod_class, NodeSnapshot(node, [(100, 32), (60, 32)])) == Fit(1)
    halves = a_pod("c", (60, 4), split={"c0": 2})
    assert check(halves.pod_class, NodeSnapshot(node, [(100, 32), (60, 32)])) == Fit(1)
    assert check(halves.pod_class, NodeSnapshot(node, [(100, 32), (100, 32)])) == Fit(2)


def test_of_a_share_of_several_cards_those_count_that_it_would_get() -> None:
    """Links come first, so it begins two whole cards although two shared ones have room."""
    node = a_node("n1", 4, links={(0, 1): "SYS", (2, 3): "NV4"})
    free = [(60, 32), (60, 32), (100, 32), (100, 32)]
    halves = a_pod("c", (100, 4), split={"c0": 2})
    assert check(halves.pod_class, NodeSnapshot(node, free)) == Fit(2)


@pytest.mark.parametrize("inits", [[], [(1, 1)]])
def test_more_in_all_than_is_free_does_not_fit_however_long_the_search(
    inits: list[tuple[int, int]],
) -> None:
    node = a_node("n1", 2, blocks=1000)
    pod = a_pod("a", *[(1, 1)] * 700, inits=inits)
    assert check(pod.pod_class, NodeSnapshot(node, node.sizes)) == Unschedulable(
        f"no card is left for one of {len(inits) + 700} containers", unresolvable=False
    )


def test_a_pod_for_which_the_search_is_given_up_is_not_kept_off_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent would not refuse it for that."""
    monkeypatch.setattr("placement.cluster.fit.search", lambda *_args: None)
    node, pod = a_node("n1", 2), a_pod("a", (61, 4), (61, 4))
    assert check(pod.pod_class, NodeSnapshot(node, [(61, 8), (61, 3)])) == Fit()
    too_full = NodeSnapshot(node, [(100, 8), (0, 4)])
    assert isinstance(check(pod.pod_class, too_full), Unschedulable), "whatever is searched"


# --- held against the agent -------------------------------------------------------------

_cores = st.sampled_from([10, 30, 40, 50, 60, 90, 100, 200])
_limit = st.tuples(_cores, st.sampled_from([1, 4, 9, 16]))
_free = st.lists(
    st.tuples(st.sampled_from([0, 10, 40, 50, 60, 99, 100]), st.sampled_from([0, 4, 8, 16])),
    min_size=1,
    max_size=3,
)
_limits = st.lists(_limit, min_size=1, max_size=3)
_few = st.lists(_limit, max_size=1)
_splits = st.dictionaries(st.sampled_from(["c0", "c1", "i0", "s0"]), st.integers(2, 4), max_size=2)


@patient
@given(_limits, _few, _few, _splits, _free)
def test_a_pod_that_fits_has_a_placement_and_another_has_none(
    limits: list[tuple[int, int]],
    inits: list[tuple[int, int]],
    sidecars: list[tuple[int, int]],
    splits: dict[str, int],
    free: list[tuple[int, int]],
) -> None:
    """Against a plan of all containers by the agent's own search, and against every combination."""
    split = {}
    for letter, listed in (("c", limits), ("i", inits), ("s", sidecars)):
        for at, (cores, blocks) in enumerate(listed):
            cards = splits.get(f"{letter}{at}")
            if cards and cores < 100:
                listed[at] = cores * cards, blocks * cards
                split[f"{letter}{at}"] = cards
    pod = a_pod("a", *limits, inits=inits, sidecars=sidecars, split=split)
    node = a_node("n1", len(free), blocks=16)
    view = NodeSnapshot(node, free)
    fits = isinstance(check(pod.pod_class, view), Fit)
    try:
        planned = plan_pod(pod, node, view.free, Policy.BINPACK, most_tries=100_000)
    except NoPlacement:
        planned = None
    assert fits == (planned is not None)
    if not inits:
        assert fits == fits_by_trying(pod, node, free)


def fits_by_trying(pod: PodInfo, node: Node, free: Sequence[tuple[int, int]]) -> bool:
    slots = {
        card.uuid: dict(zip(Resource, amounts, strict=True))
        for card, amounts in zip(node.cards, free, strict=True)
    }
    nothing = {uuid: dict.fromkeys(Resource, 0) for uuid in slots}
    return can_be_placed(pod.demand.containers, slots, nothing)
