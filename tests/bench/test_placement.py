from bench import placement
from bench.peers.machines import MACHINES
from bench.placement import Free, admit_first_fit, admit_gpu_manager, can_be_placed
from contract.demand import Demand

RTX8000 = MACHINES["4 x RTX8000"]


def _cards(*free: tuple[int, int]) -> Free:
    return [list(each) for each in free]


def test_a_small_measurement_answers_all_questions() -> None:
    result = placement.run(states=20, brute=20, seeds=6, machines=[RTX8000])
    speed, packing, *links = result.tables
    assert [row[0] for table in links for row in table.rows] == [RTX8000.name] * 2
    assert [row[0] for row in speed.rows] == ["ours", "every set"]
    assert [row[0] for row in packing.rows] == ["ours", "gpu-manager's rules", "first-fit"]
    goals = {goal.what: goal for goal in result.goals}
    assert goals["sets worse connected than the best there is"].met
    assert goals["refused by ours though a placement existed"].met


def test_gpu_managers_rules_take_the_fullest_card_and_the_smallest_group() -> None:
    free = _cards((100, 64), (40, 64), (100, 64), (100, 64))
    assert admit_gpu_manager([Demand(30, 4)], free)
    assert free[1] == [10, 60]
    assert admit_gpu_manager([Demand(200, 0)], free)
    assert [card[0] for card in free] == [100, 10, 0, 0]
    assert not admit_gpu_manager([Demand(200, 0)], free)
    assert not admit_gpu_manager([Demand(30, 99)], free)


def test_first_fit_takes_the_first_cards_that_fit() -> None:
    free = _cards((40, 64), (100, 64), (100, 64))
    assert admit_first_fit([Demand(50, 4), Demand(30, 4)], free)
    assert free == [[10, 60], [50, 60], [100, 64]]
    assert not admit_first_fit([Demand(200, 0)], free)


def test_what_can_be_placed_is_found_by_trying_everything() -> None:
    pod = [Demand(30, 2), Demand(50, 2)]
    assert can_be_placed(pod, _cards((50, 4), (40, 9)))
    assert not can_be_placed([*pod, Demand(20, 1)], _cards((50, 4), (40, 9)))
    assert can_be_placed([], [])
