"""Attribution in a tiny configuration, and our resolver on the recording."""

from bench import attribution
from bench.recording import RECORDING, load_burst
from bench.rules import judge
from contract.names import Names
from simulator.node.judge import Verdict


def test_our_resolver_names_every_container_of_the_recorded_burst() -> None:
    burst = load_burst(RECORDING, Names())
    named = attribution.replay_resolver(burst.pods, burst.calls, witness=True)
    verdicts = {judge(call.request, each) for call, each in zip(burst.calls, named, strict=True)}
    assert verdicts == {Verdict.RIGHT}


def test_without_a_witness_order_alone_is_often_wrong() -> None:
    """Fact K6: it is not our line that is better, it is the witness."""
    burst = load_burst(RECORDING, Names())
    named = attribution.replay_resolver(burst.pods, burst.calls, witness=False)
    verdicts = [judge(call.request, each) for call, each in zip(burst.calls, named, strict=True)]
    assert verdicts.count(Verdict.WRONG) > 50


def test_all_rules_are_measured_on_both_bursts() -> None:
    result = attribution.run(pods=6, seeds=(1,))
    recorded, simulated = result.tables
    assert [row[0] for row in recorded.rows[2:]] == [row[0] for row in simulated.rows[1:]]
    assert all(goal.met for goal in result.goals)
    for table in result.tables:
        counts = {row[1]: sum(int(count) for count in row[2:]) for row in table.rows}
        assert counts["core"] + counts["memory"] == counts["both"]
