"""The load must notice what fails; runs with the unit tests."""

from collections.abc import Callable

from tests.e2e.ground import wait
from tests.e2e.load import Load


def test_calls_go_on_until_it_is_left() -> None:
    numbers: list[int] = []
    with Load(numbers.append, clients=3) as load:
        wait("calls", load.more(100))

    assert len(load.seconds) == len(numbers) >= 100
    assert len(set(numbers)) == len(numbers)
    assert load.failures == []
    assert f"{len(numbers)} calls of 3 clients, 0 failed; p50 0 ms" in str(load)


def test_each_call_that_fails_is_told_and_the_others_go_on() -> None:
    with Load(_failing_once(), clients=2) as load:
        wait("calls", load.more(50))

    assert [each.why for each in load.failures] == ["ValueError: number 7"]


def _failing_once() -> Callable[[int], None]:
    def call(number: int) -> None:
        if number == 7:
            raise ValueError("number 7")

    return call
