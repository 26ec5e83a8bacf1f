"""What ``kubectl gpu`` takes on a large cluster, tried out on a small one."""

import pytest

from bench import overview


@pytest.mark.slow
def test_the_command_is_measured_beside_decoding_what_it_reads() -> None:
    result = overview.run(nodes=2, pods=24, rounds=1, seconds=3.0)
    assert float(result.tables[0].rows[-1][1]) > 0
    once, ready, looked = ([0, *map(float, map(str, row[1:]))] for row in result.tables[1].rows)
    # Each list is read once: nodes, pods, Events of ours and of denials; then it is watched.
    assert (once[2], once[3]) == (4, 0)
    assert ready[2] + looked[2] == 4 + 2  # and agents, and Events of the pod that is looked at
    assert ready[3] + looked[3] == 4
    assert "2 nodes of 8 cards, 24 pods" in result.tables[0].title
