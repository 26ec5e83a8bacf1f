"""The soak in a tiny configuration."""

from typing import Any

import pytest

from agent.allocator.prestart import PreStartCall
from agent.errors import GrantError
from bench import soak
from bench.soak import Scenario
from contract.resource import Resource
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


def test_a_pod_that_is_vetoed_without_end_does_not_keep_the_soak_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without List a guess may put cores and memory on two cards: the pod has to be deleted."""
    vetoed: list[str] = []  # the UID of the first pod that starts
    check = PreStartCall._check

    def veto_one_pod(call: PreStartCall, proof: Any, resource: Resource, ids: Any) -> None:
        vetoed[:] = vetoed or [proof.uid]
        if proof.uid in vetoed:
            raise GrantError("cores and memory are on two cards")
        check(call, proof, resource, ids)

    monkeypatch.setattr(PreStartCall, "_check", veto_one_pod)
    outcome = soak.soak(soak.SCENARIOS[2], seed=1, pods=20)
    assert outcome["agent", "prestart refused"] >= 50
    assert outcome["doubled", ""] == 0
