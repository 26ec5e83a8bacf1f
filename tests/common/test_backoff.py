"""Pauses between retries."""

from hypothesis import given
from hypothesis import strategies as st

from common.backoff import Backoff, pause_after, spread

_jitters = st.floats(0, 1, exclude_max=True)


def test_pauses_double_up_to_their_bound_and_restart_after_a_success() -> None:
    pauses = Backoff(0.5, 3.0, jitter=lambda: 0.0)
    assert [pauses.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    pauses.reset()
    assert pauses.next() == 0.5


@given(failures=st.integers(1, 10**9), jitter=_jitters)
def test_any_number_of_failures_gives_a_pause_within_bounds(failures: int, jitter: float) -> None:
    assert 0.1 <= pause_after(failures, 0.1, 30.0, jitter=lambda: jitter) <= 45.0


@given(jitter=_jitters)
def test_a_pause_is_up_to_half_longer_at_random(jitter: float) -> None:
    assert spread(10.0, lambda: jitter) == 10.0 * (1 + 0.5 * jitter)
