"""Who may be served while connections are few."""

from hypothesis import given
from hypothesis import strategies as st

from agent.enforcement.vcuda.limits import Limits
from agent.enforcement.vcuda.shares import Shares


def test_nobody_gives_way_to_one_that_would_have_as_many() -> None:
    shares = Shares(Limits(pod=9, overall=3))
    for pod in ("a", "a", "b"):
        shares.entered(pod)
    assert shares.gives_way("b", 0) is None
    assert shares.gives_way("c", 0) == "a"
    shares.left("a")
    assert shares.gives_way("c", 0) is None  # there is room


@given(steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_bounds_hold_and_who_has_nothing_is_let_in_while_somebody_has_two(
    steps: list[tuple[str, bool]],
) -> None:
    limits = Limits(pod=3, overall=5)
    shares, served = Shares(limits), dict.fromkeys("abcd", 0)
    for pod, comes in steps:
        if comes and shares.may_enter(pod, 0):
            loser = shares.gives_way(pod, 0)
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
