"""The parts of the kubelet that are a few lines each."""

import threading
import time

import grpc
import pytest

from contract.demand import ContainerKind
from simulator.kubelet.answers import Answer, DeviceNode, Mount, merge
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.ratelimit import TokenBucket
from simulator.kubelet.sockets import in_go_words
from simulator.kubelet.workqueue import WorkQueue
from tests.simulator.kubelet_helpers import wait_for


def test_a_token_bucket_allows_a_burst_and_then_its_rate() -> None:
    """K5."""
    now = [0.0]
    bucket = TokenBucket(rate=100, burst=10, clock=lambda: now[0])
    assert [bucket.allow() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] = 0.021
    assert [bucket.allow() for _ in range(3)] == [True, True, False]
    now[0] = 60.0
    assert sum(bucket.allow() for _ in range(50)) == 10


def test_the_first_of_two_answers_wins_and_the_conflict_is_told() -> None:
    one = Answer({"A": "1"}, (Mount("/m", "/x"),), (DeviceNode("/d", "/x"),), {"n": "1"}, ("c",))
    two = Answer({"A": "2"}, (Mount("/m", "/y"),), (DeviceNode("/d", "/y"),), {"n": "2"}, ("c",))
    merged = merge([one, two])
    assert merged.answer == one
    assert merged.conflicts == (
        "env A: '1' and '2'",
        "annotation n: '1' and '2'",
        "mount /m: '/x' and '/y'",
        "device /d: '/x' and '/y'",
    )
    assert merge([one, one]).conflicts == ()


POD = Pod(
    "u",
    "d",
    "p",
    "",
    (Container("i", ContainerKind.INIT, {}), Container("c", ContainerKind.MAIN, {})),
)


def test_a_key_is_never_worked_on_twice_at_once_and_added_work_is_not_lost() -> None:
    busy, most, done = [0], [0], [0]
    lock = threading.Lock()

    def work(key: str) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.002)
        with lock:
            busy[0] -= 1
            done[0] += 1

    queue = WorkQueue("t", work, threads=4)
    queue.start()
    for _ in range(20):
        queue.add("a")
        time.sleep(0.001)
    wait_for(lambda: not busy[0] and done[0] >= 2)
    assert most[0] == 1
    queue.stop()
    queue.join(2)


def test_delayed_work_comes_when_it_is_due_and_again_when_it_says_so() -> None:
    seen: list[str] = []

    def work(key: str) -> float | None:
        seen.append(key)
        return 0.01 if len(seen) < 4 else None

    queue = WorkQueue("t", work, threads=2)
    queue.start()
    queue.add("late", 5.0)
    queue.add("soon", 0.01)
    wait_for(lambda: seen == ["soon"] * 4)
    queue.add("late")
    wait_for(lambda: seen[-1] == "late")
    queue.stop()
    queue.join(2)


class _Error(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, "FailedPrecondition"),
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.UNAVAILABLE, "Unavailable"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (grpc.StatusCode.OUT_OF_RANGE, "OutOfRange"),
    ],
)
def test_errors_are_worded_as_go_words_them(code: grpc.StatusCode, words: str) -> None:
    assert in_go_words(_Error(code, "no")) == f"rpc error: code = {words} desc = no"
    assert in_go_words(_Error(code, None)) == f"rpc error: code = {words} desc = "
