"""Searches for cards, compared with trying everything."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import Amounts, Inventory, Link
from contract.resource import Resource
from contract.reusable import NO_ROOM, SPLIT, find_leftover_conflict
from contract.wishes import LINKS as LINKS_WISHED
from placement.capacity import CardSet
from placement.errors import NoPlacement
from placement.held import HeldAmounts
from placement.scoring import Policy, rank_for_share
from placement.search import ContainerPlan, ContainerStep
from placement.topology import Links
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import CORE, MAIN, MEMORY, card
from tests.examples import share
from tests.placement.searches import Room, plan, planned, pod, room

# --- whatever comes ------------------------------------------------------------------

_demands = st.one_of(
    st.tuples(st.sampled_from([10, 30, 50, 60, 99]), st.integers(1, 6)),
    st.tuples(st.sampled_from([100, 200]), st.integers(0, 8)),
)
_containers = st.lists(
    st.builds(
        lambda counts, kind, split: (
            (counts[0] * split, counts[1] * split, kind, split)
            if counts[0] < 100
            else (*counts, kind)
        ),
        *(_demands, st.sampled_from(ContainerKind), st.sampled_from([1, 1, 2, 3])),
    ),
    min_size=1,
    max_size=4,
)
_kinds = st.sampled_from(ContainerKind)
_rooms = st.lists(
    st.tuples(st.sampled_from([0, 30, 50, 60, 100]), st.integers(0, 8), st.booleans()),
    min_size=1,
    max_size=4,
)


def _check(
    found: Sequence[ContainerPlan], containers: Sequence[ContainerDemand], rooms: Sequence[Room]
) -> None:
    """Never over capacity, never a split share, never memory beside the cores."""
    used = HeldAmounts.none_held([each.free for each in rooms])
    for container, assignment in zip(containers, found, strict=True):
        assert len(set(assignment.cards)) == len(assignment.cards) == container.demand.cards
        fresh = zip(assignment.cards, assignment.fresh, strict=True)
        used = used.add(dict(fresh))
    for free, held in zip(used.sizes, used.held, strict=True):
        assert free.covers(held)


@st.composite
def _searches(draw: st.DrawFn) -> tuple[list[ContainerStep], list[Room], Links]:
    """Draw a pod with divided shares, and cards of all kinds, in the middle of its admission."""
    shares = st.builds(
        lambda each, blocks, split: (each * split, blocks * split, split),
        *(st.sampled_from([10, 30, 50, 60]), st.integers(1, 4), st.integers(1, 4)),
    )
    whole = st.tuples(st.sampled_from([100, 200]), st.integers(0, 8), st.just(1))
    drawn = draw(st.lists(st.tuples(shares | shares | whole, _kinds), min_size=1, max_size=3))
    count = draw(st.integers(1, 5))
    amounts = st.tuples(st.sampled_from([0, 30, 50, 60, 100]), st.integers(0, 8))
    left = st.sampled_from([(0, 0)] * 4 + [(10, 1), (30, 0), (50, 4)])
    words = st.sampled_from([""] * 4 + ["lost"])
    rooms = [
        room(at, *draw(amounts), left=draw(left), unhealthy=draw(words), excluded=draw(words))
        for at in range(count)
    ]
    ways = st.sampled_from(["SYS", "NODE", "PIX", "NV1"])
    pairs = [Link(pair, draw(ways)) for pair in combinations(range(count), 2)]
    numa = st.sampled_from([0, 1, None])
    links = Links(
        Inventory(tuple(replace(card(at), numa=draw(numa)) for at in range(count)), tuple(pairs))
    )
    link = draw(st.sampled_from(["", *LINKS_WISHED]))
    steps = [
        replace(step, link=link)
        for step in pod(*((cores, memory, kind, split) for (cores, memory, split), kind in drawn))
    ]
    size = steps[0].need.demand.cards
    named = (
        draw(st.sets(st.integers(0, count), min_size=size, max_size=size)) if size <= count else ()
    )
    special = draw(st.sampled_from(["", "", "chosen", "strict", "fixed"])) if named else ""
    if special in {"chosen", "strict"}:
        chosen = tuple(f"GPU-{at}" for at in named)
        steps[0] = replace(steps[0], chosen=chosen, strict=special == "strict")
    elif special == "fixed" and max(named) < count and steps[0].need.demand.memory:
        need = steps[0].need
        need = need._replace(per_card=need.per_card._replace(cores=0))
        fixed = tuple(sorted(named))
        steps[0] = replace(steps[0], need=need, lacking=frozenset({MEMORY}), fixed=fixed)
    return steps, rooms, links


@settings(max_examples=share(200))
@given(_searches(), st.sampled_from(Policy) | st.none())
def test_a_plan_exists_if_and_only_if_trying_everything_finds_one(
    drawn: tuple[list[ContainerStep], list[Room], Links], policy: Policy | None
) -> None:
    steps, rooms, links = drawn
    number = {f"GPU-{each.number}": each.number for each in rooms}

    def may_have(container: ContainerDemand, cards: tuple[str, ...]) -> bool:
        step = steps[container.index]
        at = [number[each] for each in cards]
        usable = not any(rooms[each].unhealthy or rooms[each].excluded for each in at)
        strict = not step.strict or {*step.chosen} == {*cards}
        fixed = not step.fixed or {*step.fixed} == {*at}
        return usable and strict and fixed and links.fulfils(at, step.link)

    free, left = (
        {
            uuid: dict(zip(Resource, getattr(rooms[at], what), strict=True))
            for uuid, at in number.items()
        }
        for what in ("free", "left")
    )
    possible = can_be_placed(
        [step.container for step in steps],
        free,
        left,
        may_have=may_have,
        held={step.container.name: CORE for step in steps if step.fixed},
    )
    try:
        found = plan(steps, rooms, links=links, policy=policy, most_tries=10**6)
    except NoPlacement:
        assert not possible
        return
    assert found is not None
    assert possible
    _check(found, [step.container for step in steps], rooms)
    for step, part in zip(steps, found, strict=True):
        assert may_have(step.container, tuple(f"GPU-{at}" for at in part.cards))


@given(_demands, _rooms, st.sampled_from(Policy))
def test_a_container_that_is_alone_goes_where_it_goes_before_one_that_fits_anywhere(
    demand: tuple[int, int], capacities: list[tuple[int, int, bool]], policy: Policy
) -> None:
    """What comes after it is tried elsewhere first, so the first choice stays."""
    given_rooms = [
        room(index, cores, memory, unhealthy="lost" if unhealthy else "")
        for index, (cores, memory, unhealthy) in enumerate(capacities)
    ]
    spare = room(len(given_rooms), 1, 10)
    try:
        alone = planned(pod(demand), [*given_rooms, spare], policy=policy)
    except NoPlacement:
        return
    both = planned(pod(demand, (1, 1)), [*given_rooms, spare], policy=policy)
    assert both["c0"] == alone["c0"]


@settings(max_examples=share(150))
@given(_containers, st.booleans())
def test_a_pod_does_not_fit_empty_cards_if_and_only_if_the_webhook_denies_it(
    containers: list[tuple[Any, ...]], guaranteed: bool
) -> None:
    steps = pod(*containers)
    conflict = find_leftover_conflict([each.container for each in steps])
    rule = conflict.rule if conflict else None
    assume(rule != SPLIT)
    empty = [
        room(index, memory=10**6) for index in range(sum(each.need.demand.cards for each in steps))
    ]
    try:
        found = plan(steps, empty, guaranteed=guaranteed, most_tries=10**6, size=10**6)
    except NoPlacement:
        assert rule == NO_ROOM
    else:
        assert found is not None
        assert rule is None


@given(st.data(), st.sampled_from(Policy))
def test_a_share_of_several_cards_gets_the_best_set_of_all(
    data: st.DataObject, policy: Policy
) -> None:
    """By links; then binpack begins few whole cards; then the cards that shares of one would."""
    ways = st.sampled_from(["SYS", "PIX", "NV1"])
    pairs = [Link(pair, data.draw(ways)) for pair in combinations(range(6), 2)]
    links = Links(Inventory(tuple(map(card, range(6))), tuple(pairs)))
    free = st.tuples(st.sampled_from([20, 50, 80, 100]), st.integers(2, 10))
    rooms = [room(at, *data.draw(free)) for at in range(6)]
    (step,) = pod((30 * (size := data.draw(st.integers(2, 4))), 2 * size, MAIN, size))
    sizes = [Amounts(100, 10)] * 6
    cards = CardSet([f"GPU-{at}" for at in range(6)], sizes, links, [""] * 6, [""] * 6)
    amounts = [each.free for each in rooms]
    ranked = rank_for_share(
        step.need, cards.fitting(amounts, step.need), cards, amounts, policy=policy
    )
    assume(len(ranked) >= size)

    def rank(chosen: tuple[int, ...]) -> tuple[float, ...]:
        worst, total = links.quality(chosen)
        begun = sum(amounts[at].cores == 100 for at in chosen) * (policy is Policy.BINPACK)
        return -worst, -total, begun, sum(map(ranked.index, chosen))

    best = min(combinations(sorted(ranked), size), key=lambda chosen: (rank(chosen), chosen))
    assert planned([step], rooms, links=links, policy=policy) == {"c0": list(best)}
