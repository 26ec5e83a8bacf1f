"""The gate before the kubelet's calls."""

import threading
from collections.abc import Callable

import pytest

from agent.allocator.model.answer import Answer
from agent.errors import GrantError
from agent.kubelet.call_gate import CallGate
from tests.agent.builders import CORE
from tests.agent.fakes import DEADLINE_S, FakeCalls


class Slow(FakeCalls):
    """Calls that last until they are told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.end = threading.Event()

    def allocate(self, resource: object, device_ids: object) -> Answer:
        self.begun.set()
        assert self.end.wait(DEADLINE_S)
        return Answer()


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_call_waits_until_the_gate_is_opened() -> None:
    gate = CallGate(FakeCalls())
    answers: list[object] = []
    calling = in_thread(lambda: answers.append(gate.prefer(CORE, ["a", "b"], ["a"], 2)))
    calling.join(0.1)
    assert not answers
    gate.open()
    calling.join(DEADLINE_S)
    assert answers == [["a", "b"]]


def test_closing_waits_for_the_calls_that_are_under_way() -> None:
    calls = Slow()
    gate = CallGate(calls)
    gate.open()
    calling = in_thread(lambda: gate.allocate(CORE, ["a"]))
    assert calls.begun.wait(DEADLINE_S)
    assert not gate.close(0.05)
    assert gate.idle() == 0
    calls.end.set()
    assert gate.settle(DEADLINE_S)
    calling.join(DEADLINE_S)


def test_what_is_to_be_done_after_a_call_is_done_before_its_answer() -> None:
    done: list[str] = []

    class Failing(FakeCalls):
        def prestart(self, resource: object, device_ids: object) -> None:
            done.append("called")
            raise GrantError("vetoed")

    gate = CallGate(Failing())
    gate.open(lambda: done.append("told"))
    with pytest.raises(GrantError, match="vetoed"):
        gate.prestart(CORE, ["a"])
    assert done == ["called", "told"]


def test_how_long_no_call_has_come_is_counted_from_the_end_of_the_last() -> None:
    now = 100.0
    gate = CallGate(FakeCalls(), clock=lambda: now)
    gate.open()
    now = 103.0
    assert gate.idle() == 3
    gate.prestart(CORE, ["a"])
    assert gate.idle() == 0
    now = 104.5
    assert gate.idle() == 1.5
