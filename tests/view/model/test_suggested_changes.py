"""Suggested changes that would let a pod run: which ones, in which order."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import explanation_of, state_of
from view.model.manifest_fit import FitReport


def fit(nodes: list[Json], held: list[Json], *limits: tuple[int, int], **pod: Any) -> FitReport:
    return state_of(nodes, held).fit(make_pod("new", *limits, **pod))[0]


def texts(found: FitReport, by: str = "author") -> list[str]:
    assert not found.fits
    return [each.text for each in found.changes if each.by == by]


def on(card: int, limit: tuple[int, int], name: str = "") -> Json:
    return scenes.running(name or f"on{card}", limit, "n1", card)


CORDONED = {**make_node("n2", 1), "spec": {"unschedulable": True}}


BOTH = "request 40 cores instead of 50 and 2 memory blocks instead of 4"
SHARE = "request 40 cores instead of 100 and 28 memory blocks instead of whole cards"
MANY = "request 200 cores instead of 2147483600 and 2 memory blocks instead of 8"


@pytest.mark.parametrize(
    ("cards", "held", "limits", "expected"),
    [
        (1, [on(0, (60, 4))], [(50, 4)], ["request 40 cores instead of 50"]),
        (1, [on(0, (10, 30))], [(50, 4)], ["request 2 memory blocks instead of 4"]),
        (1, [on(0, (60, 30))], [(50, 4)], [BOTH]),
        # More than any card has, so MiB were meant: a card has 32 blocks of 256 MiB.
        (1, [], [(50, 2048)], ["request 8 memory blocks (2048 MiB) instead of 2048"]),
        (1, [on(0, (10, 28))], [(50, 2048)], ["request 4 memory blocks instead of 2048"]),
        (1, [on(0, (60, 4))], [(100, 0)], [SHARE]),
        (
            *(1, [], [(60, 4), (60, 4)]),
            [f"request 40 cores instead of 60 in container {each}" for each in ("c0", "c1")],
        ),
        (1, [on(0, (99, 32))], [(50, 4)], []),
        (2, [], [(2_147_483_600, 8)], [MANY]),  # the webhook lets it pass: any int32 is a count
    ],
)
def test_an_author_sees_the_smaller_request_that_fits(
    cards: int, held: list[Json], limits: list[tuple[int, int]], expected: list[str]
) -> None:
    assert texts(fit([make_node("n1", cards)], held, *limits)) == expected


def test_wishes_are_removed_together() -> None:
    wishes = {NAMES.use_gpu_type: "h100", NAMES.nouse_gpu_uuid: "GPU-n1-0"}
    assert texts(fit([make_node("n1", 1)], [], (30, 4), annotations=wishes)) == [
        "remove the annotations tencent.com/use-gpu-type and tencent.com/nouse-gpu-uuid"
    ]


SMALL = [on(0, (60, 4)), on(1, (50, 4), "small"), on(1, (45, 4), "other")]
THREE = [on(0, (45, 4), "a"), on(0, (45, 4), "b"), on(0, (1, 1), "c")]
CAPACITY = {
    "delete pod default/small on card 1 of n1 (frees 50 cores, 4 blocks)": (
        *(make_node("n1", 2), SMALL),
        (55, 4),
    ),
    "delete pod default/a on card 0 of n1 (frees 45 cores, 4 blocks) and pod default/b "
    "on card 0 of n1 (frees 45 cores, 4 blocks)": (make_node("n1", 1), THREE, (90, 4)),
    "repair card 0 of n1: Xid 79": (make_node("n1", 1, unhealthy=[0]), [], (60, 4)),
    "uncordon card 0 of n1": (make_node("n1", 1, cordoned=[0]), [], (60, 4)),
    "make n1 usable: its agent is not connected to the kubelet": (
        *(make_node("n1", 1, allocatable="0"), []),
        (60, 4),
    ),
    "make n2 usable: the node is cordoned": (CORDONED, [], (60, 4)),
}


@pytest.mark.parametrize(("expected", "given"), CAPACITY.items())
def test_an_admin_sees_the_changes_that_free_capacity(
    expected: str, given: tuple[Json, list[Json], tuple[int, int]]
) -> None:
    node, held, limits = given
    assert texts(fit([node], held, limits), "admin") == [expected]


HALVES, THIRDS = ({NAMES.gpu_cards_of("c0"): each} for each in ("2", "3"))
ONE_HALF = "request 50 cores instead of 100, 4 memory blocks instead of 8 and 1 card instead of 2"
LESS = "request 80 cores instead of 100 and 4 memory blocks instead of 8"
TWO_THIRDS = (
    "request 60 cores instead of 90, 8 memory blocks instead of 12 and 2 cards instead of 3"
)


@pytest.mark.parametrize(
    ("cards", "held", "limits", "divided", "expected"),
    [
        (2, [(60, 4)], (100, 8), HALVES, ["request 80 cores instead of 100", ONE_HALF]),
        (2, [(60, 30)], (100, 8), HALVES, [ONE_HALF]),
        (2, [(60, 30)] * 2, (100, 8), HALVES, [LESS]),
        (
            *(3, [(60, 4)] * 3, (90, 12), HALVES),
            ["request 80 cores instead of 90", "request 3 cards instead of 2"],
        ),
        (  # more than any card has: MiB, of each card
            *(2, [], (100, 4096), HALVES),
            ["request 16 memory blocks (4096 MiB) instead of 4096"],
        ),
        (2, [], (90, 12), THIRDS, ["request 2 cards instead of 3", TWO_THIRDS]),
    ],
)
def test_an_author_of_a_divided_share_sees_smaller_requests_and_other_numbers_of_cards(
    cards: int,
    held: list[tuple[int, int]],
    limits: tuple[int, int],
    divided: dict[str, str],
    expected: list[str],
) -> None:
    holders = [on(card, each) for card, each in enumerate(held)]
    found = fit([make_node("n1", cards)], holders, limits, annotations=divided)
    assert texts(found) == expected


def test_another_number_of_cards_names_the_annotation_to_write() -> None:
    found = fit([make_node("n1", 2)], [], (90, 12), annotations=THIRDS)
    assert found.changes[0].manifest == 'metadata.annotations["tencent.com/gpu-cards-c0"]: "2"'


def test_a_smaller_request_names_the_fields_to_write() -> None:
    found = fit([make_node("n1", 2)], [on(0, (60, 4))], (200, 9))
    assert found.changes[0].manifest == (
        'resources.limits["tencent.com/vcuda-core"]: 100, '
        'resources.limits["tencent.com/vcuda-memory"]: 5'
    )


@pytest.mark.parametrize(
    ("blocks", "besides"), [(28, "or one of 7 other pods"), (29, "or pods on 2 other nodes")]
)
def test_a_truncated_list_names_the_missing_permission(blocks: int, besides: str) -> None:
    nodes = [make_node(f"n{number}", 1) for number in range(5)]
    names = [(f"{name}{number}", f"n{number}") for number in range(5) for name in "ab"]
    held = [scenes.running(name, (50, 4), node, 0) for name, node in names]
    ends = [each for each in fit(nodes, held, (50, blocks)).changes if each.kind == "delete-pods"]
    assert [each.besides for each in ends] == ["", "", besides]
    assert {each.needs for each in ends} == {"permission to delete pods in default"}


def test_all_reasons_against_a_node_are_one_change() -> None:
    node = make_node("n1", 1, allocatable="0") | {"spec": CORDONED["spec"]}
    (change,) = fit([node], [], (60, 4)).changes
    assert change.text == (
        "make n1 usable: the node is cordoned and its agent is not connected to the kubelet"
    )
    assert change.needs == "permission to change nodes and access to the node and its agent"


def test_a_change_that_the_webhook_would_deny_is_not_suggested() -> None:
    """One whole card has memory enough, but the init container leaves two over."""
    node = make_node("n1", 2, blocks=[16, 4])
    assert texts(fit([node], [], (300, 30))) == [
        "request 100 cores instead of 300 and 10 memory blocks instead of 30"
    ]
    assert texts(fit([node], [], (300, 30), inits=[(200, 0)])) == []


def test_the_smallest_change_is_listed_first() -> None:
    wish = {NAMES.use_gpu_type: "a100"}
    nodes = [make_node("n1", 1), make_node("n2", 1, models=["Tesla T4"])]
    little = fit(nodes, [on(0, (50, 4))], (60, 4), annotations=wish)
    much = fit(nodes, [on(0, (90, 4))], (60, 4), annotations=wish)
    assert [each.kind for each in little.changes][:2] == ["reduce-request", "remove-wish"]
    assert [each.kind for each in much.changes][:2] == ["remove-wish", "reduce-request"]


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ((900, 9 * 33), ": no node has 9 cards; the largest has 4"),
        ((100, 33), ": no card has 33 memory blocks; the largest has 32"),
        ((400, 0), ""),
    ],
)
def test_without_a_suggested_change_the_largest_amount_is_shown(
    limits: tuple[int, int], most: str
) -> None:
    """No card is free, and more pods than are offered to end hold the cards."""
    held = [on(card, (24, 8), f"p{card}-{each}") for card in range(4) for each in range(4)]
    state = state_of([make_node("n1", 4, blocks=32)], [*held, scenes.waiting("new", limits)])
    (found,), explanation = state.fit(make_pod("new", limits)), explanation_of(state, "new")
    message = f"No single change that gpu-turnstile can suggest would make it fit{most}."
    assert (found.changes, found.no_change) == ((), message)
    assert (explanation.changes, explanation.no_change) == ((), message)


_LESS = re.compile(
    r"request (?:(\d+) cores? instead of \d+)?(?:, | and )?(?:(\d+) memory blocks? instead of \d+)?"
    r"(?: and )?(?:(\d+) cards? instead of \d+)?$"
)


@patient
@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 15)), min_size=1, max_size=3),
    st.tuples(st.integers(1, 100), st.integers(1, 20)),
    st.integers(1, 3),
)
def test_a_suggested_request_fits_and_a_larger_one_does_not(
    held: list[tuple[int, int]], of_each: tuple[int, int], split: int
) -> None:
    """One more of each card, for a share of several."""
    node = make_node("n1", len(held), blocks=16)
    state = state_of([node], [on(card, limit) for card, limit in enumerate(held)])
    if of_each[0] == 100:
        split = 1
    limits = of_each[0] * split, of_each[1] * split, split

    def find(cores: int, blocks: int, cards: int) -> FitReport:
        divided = {NAMES.gpu_cards_of("c0"): str(cards)} if cards > 1 else {}
        (found,) = state.fit(make_pod("new", (cores, blocks), annotations=divided))
        assert not found.errors
        return found

    for change in find(*limits).changes:
        found = _LESS.match(change.text)
        if change.kind != "reduce-request" or found is None:
            continue
        numbers = zip(found.groups(), limits, strict=True)
        cores, blocks, cards = (int(got or old) for got, old in numbers)
        assert find(cores, blocks, cards).fits
        if found[3]:
            continue
        if found[1] and not found[2] and cores < 99 * split:
            assert not find(cores + split, blocks, cards).fits
        if found[2] and not found[1]:
            assert not find(cores, blocks + split, cards).fits
