"""Reading pods from the API server while a call waits."""

from typing import cast

import pytest

from agent.allocator.interfaces import PodSource
from agent.allocator.observer import PodReader
from agent.errors import Unavailable
from tests.agent.fakes import FakeClock


class SlowPods:
    """An API server whose first responses never come, or fail at once."""

    def __init__(self, failures: int, *, hangs: bool) -> None:
        self.clock = FakeClock()
        self.within: list[float] = []
        self._failures, self._hangs = failures, hangs

    def fetch(self, namespace: str, name: str, *, within: float) -> None:
        self.within.append(round(within, 3))
        if len(self.within) <= self._failures:
            self.pause(within if self._hangs else 0)
            raise Unavailable("no response")

    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def reader(self) -> PodReader:
        return PodReader(cast(PodSource, self), self.clock, self.pause)


@pytest.mark.parametrize(
    ("pods", "within", "in_time"),
    [
        (SlowPods(0, hangs=False), [0.5, 0.5], True),
        (SlowPods(2, hangs=False), [0.5, 0.475, 0.75, 0.375], True),
        (SlowPods(9, hangs=False), [0.5, 0.475, 0.75], False),
        (SlowPods(1, hangs=True), [0.5, 0.225, 0.225], True),
        (SlowPods(9, hangs=True), [0.5, 0.225, 0.025], False),
    ],
    ids=["at once", "after two errors", "never", "after one hung request", "all requests hang"],
)
def test_every_request_leaves_time_for_another_before_the_deadline(
    pods: SlowPods, within: list[float], *, in_time: bool
) -> None:
    reader = pods.reader()
    keys = [("default", "a"), ("default", "b")]
    assert reader.read(keys, deadline=reader.deadline(1.0)) is in_time
    assert pods.within == within
    assert pods.clock.now <= 1001


def test_an_unreachable_api_server_gets_one_retry_until_it_responds() -> None:
    pods = SlowPods(8, hangs=False)
    reader = pods.reader()
    requests = []
    for _ in range(4):
        reader.read([("default", "a")], deadline=reader.deadline(1.0))
        requests.append(len(pods.within))
    assert requests == [3, 6, 8, 9]
