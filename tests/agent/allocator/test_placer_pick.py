import pytest

from agent.allocator.model.tickets import Ticket
from agent.allocator.placer import pick
from agent.errors import PlacementError
from contract.demand import Demand
from tests.agent.builders import CORE, MEMORY


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
