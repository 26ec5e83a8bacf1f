"""What a socket's peers may use up, by the clock of the test."""

from hypothesis import given
from hypothesis import strategies as st

from agent.enforcement.vcuda.limits import Account, Limits

LIMITS = Limits(socket=2, burst=3, per_second=2.0)


def test_a_burst_may_come_at_once_and_then_so_many_a_second() -> None:
    account = Account(LIMITS, 100.0)
    for _ in range(3):
        assert account.open(100.0)
        account.came()
    assert not account.open(100.0)
    assert account.opens_at() == 100.5
    assert not account.open(100.4)
    assert account.open(100.5)
    account.came()
    assert account.opens_at() == 101.0
    assert account.open(1000.0)
    assert account.turns == 3.0  # no more than a burst is saved up


def test_a_full_socket_waits_for_no_turn_but_for_somebody_to_leave() -> None:
    account = Account(LIMITS, 0.0)
    account.served = 2
    account.turns = 0.0
    assert account.opens_at() is None
    assert not account.open(10.0)
    account.served = 1
    assert account.open(10.0)
    assert account.opens_at() is None


def test_one_that_could_not_be_let_in_has_the_next_wait() -> None:
    account = Account(LIMITS, 0.0)
    account.failed()
    assert account.opens_at() == 0.5
    account.came()
    account.failed()
    assert account.opens_at() == 1.0  # what is owed already is not forgiven


@given(st.lists(st.floats(0, 5), max_size=60))
def test_in_the_long_run_no_more_come_than_may(gaps: list[float]) -> None:
    account, now, came = Account(LIMITS, 0.0), 0.0, 0
    for gap in gaps:
        now += gap
        if account.open(now):
            account.came()
            came += 1
    assert came <= LIMITS.burst + LIMITS.per_second * now + 1e-6
