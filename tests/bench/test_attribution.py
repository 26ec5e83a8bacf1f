"""Attribution on the recorded burst: what docs/benchmarks.md says of it."""

from bench import attribution


def test_ours_is_right_in_every_call_and_others_are_as_often_as_the_page_says() -> None:
    result = attribution.run()
    (table,) = result.tables
    assert [(str(row[0]).strip(), *row[1:]) for row in table.rows] == [
        ("gpu-turnstile", "both", 268, 0, 0),
        ("without List: by order and the file", "both", 212, 54, 2),
        ("gpu-manager", "core", 8, 100, 26),
        ("gpushare", "memory", 2, 47, 85),
        ("volcano", "memory", 9, 71, 54),
    ]
    assert all(goal.met for goal in result.goals)
