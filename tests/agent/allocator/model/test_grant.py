import pytest

from agent.allocator.model.grant import (
    Grant,
    Share,
    check_free,
    check_request,
    check_together,
    translate,
)
from agent.allocator.model.tickets import Ticket
from agent.errors import GrantError
from contract.demand import Demand
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY


def _tickets(*cards: tuple[str, int]) -> list[Ticket]:
    return [Ticket(card, place) for card, count in cards for place in range(count)]


def _grant(resource: Resource, *cards: tuple[str, int]) -> Grant:
    return Grant(resource, tuple(Share(card, places) for card, places in cards))


@pytest.mark.parametrize(
    ("resource", "cards"),
    [
        (CORE, [("GPU-0", 1)]),
        (CORE, [("GPU-0", 99)]),
        (CORE, [("GPU-0", 100)]),
        (CORE, [("GPU-1", 100), ("GPU-0", 100)]),
        (MEMORY, [("GPU-0", 1)]),
        (MEMORY, [("GPU-0", 3), ("GPU-1", 2)]),
    ],
)
def test_tickets_stand_for_places_per_card_in_their_order(
    resource: Resource, cards: list[tuple[str, int]]
) -> None:
    grant = translate(resource, _tickets(*cards))
    assert grant == _grant(resource, *cards)
    assert grant.cards == tuple(card for card, _ in cards)
    assert grant.places == sum(places for _, places in cards)


@pytest.mark.parametrize(
    ("resource", "tickets", "message"),
    [
        (CORE, [], "no places of core were named"),
        (MEMORY, [], "no places of memory were named"),
        (CORE, [Ticket("GPU-0", 1), Ticket("GPU-0", 1)], "a place of core is named twice"),
        (
            CORE,
            _tickets(("GPU-0", 30), ("GPU-1", 20)),
            "a share of 50 cores is split over cards: 30 on GPU-0, 20 on GPU-1",
        ),
        (
            CORE,
            _tickets(("GPU-0", 99), ("GPU-1", 1)),
            "100 cores are whole cards, but the places are not: 99 on GPU-0, 1 on GPU-1",
        ),
        (
            CORE,
            _tickets(("GPU-0", 100), ("GPU-1", 50)),
            "150 cores are whole cards, but the places are not: 100 on GPU-0, 50 on GPU-1",
        ),
    ],
)
def test_tickets_that_make_no_sense_are_refused(
    resource: Resource, tickets: list[Ticket], message: str
) -> None:
    with pytest.raises(GrantError) as caught:
        translate(resource, tickets)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("cores", "memory"),
    [
        (None, None),
        (_grant(CORE, ("GPU-0", 50)), None),
        (None, _grant(MEMORY, ("GPU-0", 4))),
        (_grant(CORE, ("GPU-0", 50)), _grant(MEMORY, ("GPU-0", 4))),
        (_grant(CORE, ("GPU-0", 100), ("GPU-1", 100)), _grant(MEMORY, ("GPU-1", 4))),
    ],
)
def test_memory_where_the_cores_are_is_fine(cores: Grant | None, memory: Grant | None) -> None:
    check_together(cores, memory)


def test_memory_on_other_cards_than_the_cores_is_refused() -> None:
    with pytest.raises(GrantError) as caught:
        check_together(
            _grant(CORE, ("GPU-0", 100), ("GPU-1", 100)),
            _grant(MEMORY, ("GPU-1", 1), ("GPU-2", 1), ("GPU-3", 1)),
        )
    assert str(caught.value) == (
        "memory on GPU-2, GPU-3, but the container's cores are on GPU-0, GPU-1"
    )


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        (_grant(CORE, ("GPU-0", 50)), None),
        (_grant(MEMORY, ("GPU-0", 4)), None),
        (_grant(CORE, ("GPU-0", 40)), "40 places of core, but the container asks for 50"),
        (_grant(MEMORY, ("GPU-0", 5)), "5 places of memory, but the container asks for 4"),
    ],
)
def test_a_grant_must_be_what_its_container_asks_for(grant: Grant, message: str | None) -> None:
    if message is None:
        check_request(Demand(50, 4), grant)
        return
    with pytest.raises(GrantError) as caught:
        check_request(Demand(50, 4), grant)
    assert str(caught.value) == message


def test_places_nobody_else_holds_are_free() -> None:
    check_free(CORE, [])


def test_places_another_container_holds_are_refused_and_three_are_named() -> None:
    with pytest.raises(GrantError) as caught:
        check_free(CORE, {f"GPU-0::{place}" for place in range(5)})
    assert str(caught.value) == (
        "5 places of core are held by another container: GPU-0::0, GPU-0::1, GPU-0::2"
    )
