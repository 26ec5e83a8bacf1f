"""What ``kubectl gpu`` takes on a large cluster, tried out on a small one."""

import pytest

from bench import overview


@pytest.mark.slow
def test_the_command_is_measured_beside_decoding_what_it_reads() -> None:
    result = overview.run(nodes=2, pods=24, rounds=1)
    (goal,) = result.goals
    assert goal.measured > 0
    assert "2 nodes of 8 cards, 24 pods" in result.tables[0].title
