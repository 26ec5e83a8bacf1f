"""The parts of the kubelet that are a few lines each."""

import json
import threading
import time
from pathlib import Path

import grpc
import pytest

from contract.demand import ContainerKind
from simulator.client import Json
from simulator.kubelet.answers import Answer, DeviceNode, Mount, merge
from simulator.kubelet.errors import Stopping
from simulator.kubelet.numa import Device, by_node, split_by_affinity
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.ratelimit import TokenBucket
from simulator.kubelet.runtime import Run, Runtime
from simulator.kubelet.sockets import SocketServer, in_go_words
from simulator.kubelet.statusbody import Waiting, status_body
from simulator.kubelet.trace import Trace
from simulator.kubelet.wire import read_answer, write_answer
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


def test_an_answer_survives_its_message() -> None:
    answer = Answer(
        {"A": "1"}, (Mount("/m", "/x", True),), (DeviceNode("/d", "/x", "r"),), {"n": "1"}, ("c",)
    )
    assert read_answer(write_answer(answer)) == answer


def test_devices_are_grouped_by_affinity() -> None:
    devices = {
        each.id: each for each in (Device("a", nodes=(0,)), Device("b", nodes=(1,)), Device("c"))
    }
    split = split_by_affinity(list(devices), devices, {1})
    assert (split.aligned, split.unaligned, split.elsewhere) == (("b",), ("a",), ("c",))
    assert split_by_affinity(["a", "b"], devices, None).elsewhere == ("a", "b")
    assert split_by_affinity(["x"], {"x": Device("x")}, {1}).elsewhere == ("x",)
    assert by_node(["a", "c"], devices) == {0: ("a",), -1: ("c",)}


def test_the_runtime_outlives_the_kubelet_and_ends_with_the_node(tmp_path: Path) -> None:
    runtime = Runtime(tmp_path)
    runtime.start("u", "c", {"envs": {}}, now=5.0, finish_at=None)
    runtime.finish("u", "c", 1)
    runtime.start("u", "c", {"envs": {"A": "1"}}, now=6.0, finish_at=9.0)
    again = Runtime(tmp_path)
    assert again.get("u", "c") == Run(True, 0, 2, 6.0, 9.0, {"envs": {"A": "1"}})
    assert again.running() == {("u", "c")}
    again.reboot()
    assert Runtime(tmp_path).get("u", "c") == Run(False, 137, 2, 6.0, 9.0, {"envs": {"A": "1"}})
    again.remove("u")
    assert Runtime(tmp_path).get("u", "c") is None


POD = Pod(
    "u",
    "d",
    "p",
    "",
    (Container("i", ContainerKind.INIT, {}), Container("c", ContainerKind.MAIN, {})),
)


@pytest.mark.parametrize(
    ("runs", "waiting", "phase", "state"),
    [
        ({}, {}, "Pending", {"waiting": {"reason": "PodInitializing"}}),
        (
            {},
            {"c": Waiting("CreateContainerConfigError", "no")},
            "Pending",
            {"waiting": {"reason": "CreateContainerConfigError", "message": "no"}},
        ),
        (
            {"c": Run(True, started_at=0.0)},
            {},
            "Running",
            {"running": {"startedAt": "1970-01-01T00:00:00Z"}},
        ),
        (
            {"c": Run(False, 1)},
            {},
            "Pending",
            {"terminated": {"exitCode": 1, "reason": "Error"}},
        ),
        (
            {"c": Run(False, 0, finish_at=1.0)},
            {},
            "Succeeded",
            {"terminated": {"exitCode": 0, "reason": "Completed"}},
        ),
        (
            {"c": Run(False, 3, finish_at=1.0)},
            {},
            "Failed",
            {"terminated": {"exitCode": 3, "reason": "Error"}},
        ),
    ],
)
def test_a_status_says_what_containers_do(
    runs: dict[str, Run], waiting: dict[str, Waiting], phase: str, state: Json
) -> None:
    body = status_body(POD, lambda uid, name: runs.get(name), waiting)
    assert (body["phase"], body["containerStatuses"][0]["state"]) == (phase, state)
    assert [each["name"] for each in body["initContainerStatuses"]] == ["i"]


def test_a_trace_is_continued_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    Trace(path).add("rpc", POD, rpc="Allocate", ids=("a",), container="c")
    trace = Trace(path)
    trace.add("end", POD)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["seq"], each["event"]) for each in lines] == [(0, "rpc"), (1, "end")]
    assert (lines[0]["ids"], lines[0]["pod"], lines[0]["container"]) == (["a"], "p", "c")
    assert lines[0]["containers"][0] == {"name": "i", "kind": "init", "limits": {}}
    assert trace.rpcs() == ()


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


def test_stopping_ends_a_queue() -> None:
    def work(key: str) -> float | None:
        raise Stopping

    queue = WorkQueue("t", work, threads=2)
    queue.start()
    queue.add("a")
    queue.join(5)
    assert not any(thread.is_alive() for thread in queue._threads)


def test_a_socket_path_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have at most 107 bytes"):
        SocketServer(tmp_path / ("x" * 200), name="t", threads=1)


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
