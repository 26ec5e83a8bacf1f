"""What the peers of sockets and pods may use up."""

from hypothesis import given
from hypothesis import strategies as st

from agent.enforcement.vcuda.limits import Limits, Shares, Turns


def test_a_burst_may_come_at_once_and_then_so_many_a_second() -> None:
    turns = Turns(Limits(burst=3, per_second=2.0))
    assert [turns.take(100.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert turns.take(102.0) == 0
    assert [turns.take(1000.0) for _ in range(4)] == [0, 0, 0, 0.5]  # only a burst is saved up


@given(st.lists(st.floats(0, 5), max_size=60))
def test_in_the_long_run_no_more_come_than_may(gaps: list[float]) -> None:
    turns, now = Turns(Limits(burst=3, per_second=2.0)), 0.0
    for count, gap in enumerate(gaps, 1):
        now += gap
        now += turns.take(now)
        assert count <= 3 + 2.0 * now + 1e-6


def test_nobody_displaced_to_one_that_would_have_as_many() -> None:
    shares = Shares(Limits(pod=9, overall=3))
    for pod in ("a", "a", "b"):
        shares.entered(pod)
    assert shares.displaced("b", 0) is None
    assert shares.displaced("c", 0) == "a"
    shares.left("a")
    assert shares.displaced("c", 0) is None  # there is room


@given(steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_bounds_hold_and_who_has_nothing_is_let_in_while_somebody_has_two(
    steps: list[tuple[str, bool]],
) -> None:
    limits = Limits(pod=3, overall=5)
    shares, served = Shares(limits), dict.fromkeys("abcd", 0)
    for pod, comes in steps:
        if comes and shares.may_enter(pod, 0):
            loser = shares.displaced(pod, 0)
            if loser is not None:
                assert loser != pod
                shares.left(loser)
                served[loser] -= 1
            shares.entered(pod)
            served[pod] += 1
        elif not comes and served[pod]:
            shares.left(pod)
            served[pod] -= 1
        assert max(served.values()) <= 3
        assert sum(served.values()) <= 5
        if max(served.values()) >= 2:
            assert all(shares.may_enter(each, 0) for each, count in served.items() if not count)
