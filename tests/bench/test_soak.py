"""The soak in a tiny configuration."""

import pytest

from bench import soak
from bench.soak import Scenario
from simulator.node.judge import Verdict


@pytest.mark.parametrize("scenario", soak.SCENARIOS[:3], ids=lambda each: each.name)
def test_no_place_is_given_twice_and_nobody_is_named_wrongly(scenario: Scenario) -> None:
    """Where List cannot be asked, the third, order decides and may be wrong."""
    outcome = soak.soak(scenario, seed=3, pods=8)
    assert outcome["containers", ""] > 8
    assert outcome["doubled", ""] == 0
    if scenario is soak.SCENARIOS[2]:
        assert outcome["agent", "prefer by order"]
    else:
        assert outcome["verdict", Verdict.RIGHT]
        assert outcome["verdict", Verdict.WRONG] == 0
        assert outcome["different", ""] == 0


def test_a_pod_that_is_vetoed_without_end_does_not_keep_the_soak_from_its_end() -> None:
    """Without List a guess may put cores and memory on two cards: the pod has to be deleted."""
    outcome = soak.soak(soak.SCENARIOS[2], seed=2, pods=20)
    assert outcome["agent", "prestart refused"] >= 50
    assert outcome["doubled", ""] == 0
