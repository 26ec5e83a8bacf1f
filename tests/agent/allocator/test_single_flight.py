"""Many callers, one question at a time, and never an answer older than who asks."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.model.podresources import Snapshot
from agent.allocator.single_flight import SharedRecord
from agent.errors import Unavailable
from tests.agent.builders import listed, patient, snapshot
from tests.agent.fakes import DEADLINE_S, FakeClock, eventually
from tests.examples import share


class Source:
    """A ``RecordSource``: each answer shows the number of its question."""

    def __init__(self, *troubles: str, takes: Sequence[float] = ()) -> None:
        self.troubles = list(troubles)  # of one question after another: "" or why not
        self.takes = list(takes)  # seconds, of one question after another
        self.asked = 0
        self.at_once = 0
        self.most_at_once = 0
        self.within: list[float] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self._lock = threading.Lock()

    def list(self, *, within: float) -> Snapshot:
        with self._lock:
            self.asked += 1
            number = self.asked
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.within.append(within)
            trouble = self.troubles.pop(0) if self.troubles else ""
            takes = self.takes.pop(0) if self.takes else 0.0
        try:
            if not self.go_on.wait(within):
                raise Unavailable("hangs")
            time.sleep(takes)
            if trouble:
                raise Unavailable(trouble)
            return snapshot(listed(str(number)))
        finally:
            with self._lock:
                self.at_once -= 1


def number(seen: Snapshot) -> int:
    return int(seen.pods[0].name)


def waiting(shared: SharedRecord) -> int:
    """How many callers wait; they are where nobody else looks."""
    with shared._changed:
        return len(shared._changed._waiters)  # type: ignore[attr-defined]  # of threading


def _asking(
    pool: ThreadPoolExecutor, shared: SharedRecord, callers: int, within: float = DEADLINE_S
) -> list[Future[Snapshot]]:
    """Have callers come while a question is on its way, and wait until they wait."""
    before = waiting(shared)
    futures = [pool.submit(shared.list, within=within) for _ in range(callers)]
    eventually(lambda: waiting(shared) == before + callers, "they wait")
    return futures


def _first(pool: ThreadPoolExecutor, shared: SharedRecord, source: Source) -> Future[Snapshot]:
    """Have a question on its way."""
    asked = source.asked
    future = pool.submit(shared.list, within=DEADLINE_S)
    eventually(lambda: source.asked == asked + 1, "it is asked")
    return future


def test_all_the_time_is_given_to_a_question_that_need_not_wait() -> None:
    source = Source()
    SharedRecord(source, clock=FakeClock()).list(within=1.5)
    assert source.within == [1.5]


def test_who_comes_while_a_question_is_on_its_way_shares_the_next_answer() -> None:
    source = Source()
    shared = SharedRecord(source)
    source.go_on.clear()
    with ThreadPoolExecutor(16) as pool:
        first = _first(pool, shared, source)
        others = _asking(pool, shared, 6)
        source.go_on.set()
        assert number(first.result(DEADLINE_S)) == 1
        assert [number(each.result(DEADLINE_S)) for each in others] == [2] * 6
    assert (source.asked, source.most_at_once) == (2, 1)


def test_a_failure_is_its_askers_alone_and_the_next_one_asks_again() -> None:
    source = Source("no socket")
    shared = SharedRecord(source)
    source.go_on.clear()
    with ThreadPoolExecutor(16) as pool:
        first = _first(pool, shared, source)
        others = _asking(pool, shared, 3)
        source.go_on.set()
        with pytest.raises(Unavailable, match=r"^no socket$"):
            first.result(DEADLINE_S)
        assert [number(each.result(DEADLINE_S)) for each in others] == [2] * 3


def test_an_asker_that_fails_in_another_way_does_not_keep_the_others_waiting() -> None:
    class Broken(Source):
        def list(self, *, within: float) -> Snapshot:
            super().list(within=within)
            if self.asked == 1:
                raise RuntimeError("a fault of ours")
            return snapshot(listed("9"))

    source = Broken()
    shared = SharedRecord(source)
    source.go_on.clear()
    with ThreadPoolExecutor(16) as pool:
        first = _first(pool, shared, source)
        others = _asking(pool, shared, 2)
        source.go_on.set()
        with pytest.raises(RuntimeError):
            first.result(DEADLINE_S)
        assert [number(each.result(DEADLINE_S)) for each in others] == [9, 9]


@pytest.mark.parametrize("within", [0.0, -1.0])
def test_who_has_no_time_asks_nothing(within: float) -> None:
    source = Source()
    with pytest.raises(Unavailable, match=r"^PodResources: no answer in time$"):
        SharedRecord(source).list(within=within)
    assert source.asked == 0


def test_while_the_source_hangs_everybody_ends_by_his_own_deadline() -> None:
    """The one who asks waits longest; nobody waits for him."""
    source = Source()
    shared = SharedRecord(source)
    source.go_on.clear()
    late: list[float] = []

    def call(within: float) -> None:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            shared.list(within=within)
        late.append(time.monotonic() - began - within)

    with ThreadPoolExecutor(16) as pool:
        first = _first(pool, shared, source)
        for each in [pool.submit(call, within) for within in (0.05, 0.1, 0.15, 0.2)]:
            each.result(DEADLINE_S)
        assert not first.done()
        source.go_on.set()
        first.result(DEADLINE_S)
    assert all(0 <= each < 2 for each in late)
    assert source.asked == 1


def test_who_has_waited_asks_with_what_time_is_left() -> None:
    source, clock = Source(), FakeClock()
    shared = SharedRecord(source, clock=clock)
    source.go_on.clear()
    with ThreadPoolExecutor(16) as pool:
        first = _first(pool, shared, source)
        (other,) = _asking(pool, shared, 1, within=10)
        clock.now += 4
        source.go_on.set()
        first.result(DEADLINE_S)
        other.result(DEADLINE_S)
    assert source.within == [DEADLINE_S, 6]


_callers = st.lists(
    st.tuples(
        st.integers(0, 3),  # comes so many ms after the others
        st.integers(1, 3),  # and asks so often
    ),
    min_size=1,
    max_size=6,
)


@settings(patient, max_examples=share(40))
@given(
    callers=_callers,
    takes=st.lists(st.sampled_from([0.0, 0.001, 0.003]), max_size=12),
    troubles=st.lists(st.sampled_from(["", "", "rate limited"]), max_size=12),
)
def test_every_answer_was_asked_for_after_its_caller_came(
    callers: Sequence[tuple[int, int]], takes: Sequence[float], troubles: Sequence[str]
) -> None:
    source = Source(*troubles, takes=takes)
    shared = SharedRecord(source)
    start = threading.Barrier(len(callers))
    failed: list[int] = []

    def caller(late: int, times: int) -> Callable[[], list[tuple[int, int]]]:
        def call() -> list[tuple[int, int]]:
            start.wait(DEADLINE_S)
            time.sleep(late / 1000)
            heard = []
            for _ in range(times):
                before = source.asked
                try:
                    heard.append((before, number(shared.list(within=DEADLINE_S))))
                except Unavailable:
                    failed.append(before)
            return heard

        return call

    with ThreadPoolExecutor(len(callers)) as pool:
        futures = [pool.submit(caller(*each)) for each in callers]
        for future in futures:
            for before, heard in future.result(DEADLINE_S):
                assert heard > before
    assert len(failed) <= sum(map(bool, troubles))
    assert source.most_at_once <= 1
    assert source.asked <= sum(times for _, times in callers)
