"""The soak in a tiny configuration."""

import pytest

from bench import soak
from bench.soak import Outcome, Scenario
from simulator.node.judge import Verdict


@pytest.mark.parametrize("scenario", soak.SCENARIOS[:2], ids=lambda each: each.name)
def test_nobody_is_named_wrongly_where_list_can_be_asked(scenario: Scenario) -> None:
    outcome = soak.soak(scenario, seed=3, pods=12)
    assert outcome.verdicts[Verdict.RIGHT]
    assert outcome.verdicts[Verdict.WRONG] == 0
    assert outcome.different == 0
    assert outcome.doubled == 0


def test_without_list_order_decides_and_no_place_is_given_twice() -> None:
    outcome = soak.soak(soak.SCENARIOS[2], seed=3, pods=12)
    assert outcome.counts["prefer by order"]
    assert outcome.doubled == 0


def test_outcomes_add_up() -> None:
    one = soak.soak(soak.SCENARIOS[0], seed=3, pods=2)
    both = one + one
    assert both.containers == 2 * one.containers
    assert both.verdicts.total() == 2 * one.verdicts.total()
    assert Outcome() + one == one
