"""Repeated reports: the first few pass, then a count; none is lost or reported twice."""

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
    """Two reports pass, then a count every 10 s; counting restarts after 60 s; three kinds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_REPORTS", 2)
        patch.setattr(module, "MOST_KINDS", 3)
        yield


def test_the_first_reports_pass_and_then_a_count() -> None:
    clock = FakeClock()
    repeats: RepeatFilter[int] = RepeatFilter(clock)
    assert [repeats.add("full", number) for number in range(5)] == [1, 1, 0, 0, 0]
    clock.now += 9
    assert repeats.due() == []
    clock.now += 1
    assert repeats.add("full", 5) == 4
    assert repeats.add("full", 6) == 0
    clock.now += 10
    assert repeats.due() == [(1, 6)]
    assert repeats.due() == []
    clock.now += 49
    assert repeats.due() == []
    assert repeats.add("full", 7) == 1
    clock.now += 60
    assert repeats.due() == []  # counting starts again
    assert [repeats.add("full", number) for number in range(3)] == [1, 1, 0]


def test_a_flood_of_kinds_is_bounded_too() -> None:
    """A reason may name another pod each time."""
    clock = FakeClock()
    repeats: RepeatFilter[int] = RepeatFilter(clock)
    assert sum(repeats.add(f"held by pod {number}", number) for number in range(1000)) == 5
    clock.now += 10
    assert repeats.due() == [(995, 999)]


_steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30)) | st.tuples(st.none(), st.integers(0, 70))
)


@given(steps=_steps)
def test_every_report_is_counted_in_the_end(steps: list[tuple[str | None, int]]) -> None:
    clock, came, reported = FakeClock(), Counter[str](), Counter[str]()
    repeats: RepeatFilter[str] = RepeatFilter(clock)
    for kind, seconds in steps:
        clock.now += seconds
        if kind is not None:
            came[kind] += 1
            reported[kind] += repeats.add(kind, kind)
        else:
            for count, kept_kind in repeats.due():
                reported[kept_kind] += count
    clock.now += 10
    for count, kept_kind in repeats.due():
        reported[kept_kind] += count
    assert reported == came
