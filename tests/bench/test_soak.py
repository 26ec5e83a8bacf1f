"""The soak in a tiny configuration."""

import pytest

from bench import soak
from bench.soak import Outcome, Scenario
from simulator.node.judge import Verdict


@pytest.mark.parametrize("scenario", soak.SCENARIOS[:3], ids=lambda each: each.name)
def test_no_place_is_given_twice_and_nobody_is_named_wrongly(scenario: Scenario) -> None:
    """Where List cannot be asked, the third, order decides and may be wrong."""
    outcome = soak.soak(scenario, seed=3, pods=8)
    assert outcome.doubled == 0
    if scenario is soak.SCENARIOS[2]:
        assert outcome.counts["prefer by order"]
    else:
        assert outcome.verdicts[Verdict.RIGHT]
        assert outcome.verdicts[Verdict.WRONG] == 0
        assert outcome.different == 0
    assert (Outcome() + outcome + outcome).containers == 2 * outcome.containers
