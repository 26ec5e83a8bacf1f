"""Equal news: the first few alone, then how many there were; none is lost or told twice."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.observability import decision_log as module
from agent.observability.decision_log import RepeatFilter
from tests.agent.fakes import FakeClock


@pytest.fixture(autouse=True, scope="module")
def _limits() -> Iterator[None]:
    """Two alone, then together every 10 s; news again after 60 s; three kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_REPORTS", 2)
        patch.setattr(module, "MOST_KINDS", 3)
        yield


def test_the_first_are_told_alone_and_then_how_many_there_were() -> None:
    clock = FakeClock()
    folding: RepeatFilter[int] = RepeatFilter(clock)
    assert [folding.add("full", number) for number in range(5)] == [1, 1, 0, 0, 0]
    clock.now += 9
    assert folding.due() == []
    clock.now += 1
    assert folding.add("full", 5) == 4
    assert folding.add("full", 6) == 0
    clock.now += 10
    assert folding.due() == [(1, 6)]
    assert folding.due() == []
    clock.now += 49
    assert folding.due() == []
    assert folding.add("full", 7) == 1
    clock.now += 60
    assert folding.due() == []  # after so quiet a time it is news again
    assert [folding.add("full", number) for number in range(3)] == [1, 1, 0]


def test_a_flood_of_kinds_is_bounded_too() -> None:
    """A reason may name a pod, and be another one each time."""
    clock = FakeClock()
    folding: RepeatFilter[int] = RepeatFilter(clock)
    assert sum(folding.add(f"held by pod {number}", number) for number in range(1000)) == 5
    clock.now += 10
    assert folding.due() == [(995, 999)]


_steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30)) | st.tuples(st.none(), st.integers(0, 70))
)


@given(steps=_steps)
def test_all_that_came_is_told_of_in_the_end(steps: list[tuple[str | None, int]]) -> None:
    clock, came, told = FakeClock(), Counter[str](), Counter[str]()
    folding: RepeatFilter[str] = RepeatFilter(clock)
    for kind, seconds in steps:
        clock.now += seconds
        if kind is not None:
            came[kind] += 1
            told[kind] += folding.add(kind, kind)
        else:
            for count, news in folding.due():
                told[news] += count
    clock.now += 10
    for count, news in folding.due():
        told[news] += count
    assert told == came
