"""Attribution on the recorded burst: what docs/benchmarks.md says of it."""

from bench import attribution


def test_ours_is_right_in_every_call_and_others_are_as_often_as_the_page_says() -> None:
    result = attribution.run()
    (table,) = result.tables
    by_rule = {row[0].strip(): row[1:] for row in table.rows if isinstance(row[0], str)}
    assert by_rule["gpu-turnstile"] == ("both", 268, 0, 0)
    assert by_rule["gpu-manager"] == ("core", 8, 100, 26)
    assert by_rule["without List: by order and the file"][2] == 54
    assert all(goal.met for goal in result.goals)
