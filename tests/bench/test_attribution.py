"""Attribution in a tiny configuration; the resolver is in tests/agent/test_recorded_burst.py."""

from bench import attribution


def test_all_rules_are_measured_on_both_bursts() -> None:
    result = attribution.run(pods=6, seeds=(1,))
    recorded, simulated = result.tables
    assert [row[0] for row in recorded.rows[2:]] == [row[0] for row in simulated.rows[1:]]
    assert all(goal.met for goal in result.goals)
    for table in result.tables:
        counts = {row[1]: sum(int(count) for count in row[2:]) for row in table.rows}
        assert counts["core"] + counts["memory"] == counts["both"]
