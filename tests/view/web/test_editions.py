"""Editions and streams: a browser that applies the changes since its edition has the newest one."""

import asyncio
import selectors
import threading
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.placement.cluster.builders import NAMES, make_node
from view.model.reports import ClusterReport, NodeReport
from view.model.state import ClusterState
from view.web.editions import EMPTY, next_edition
from view.web.feed import Feed, Stream


def nodes(*names: str) -> dict[str, NodeReport]:
    state = ClusterState(NAMES)
    for name in names:
        state.put_node(make_node(name, 1))
    return {each.name: each for each in state.report().nodes}


KNOWN = nodes(*"abcd")
MOMENTS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), min_size=1, max_size=8
)


def report(moment: dict[str, int]) -> ClusterReport:
    return ClusterReport(
        tuple(replace(KNOWN[name], pods=pods) for name, pods in sorted(moment.items())), (), (), ()
    )


@given(moments=MOMENTS, requested=st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_browser_that_skips_editions_gets_the_current_state(
    moments: list[dict[str, int]], requested: list[bool]
) -> None:
    edition = EMPTY
    seen, have = 0, dict[str, NodeReport]()
    for moment, requests in zip(moments, requested, strict=False):
        edition = next_edition(edition, report(moment), first=5)
        if not requests:
            continue
        changed = edition.changed(seen)
        now = {each.name: each for each in edition.report.nodes}
        if changed is None:
            have = now
        else:  # in the order of the response; nodes that it lacks are deleted
            have = {name: each if name in changed else have[name] for name, each in now.items()}
        seen = edition.number
        assert have == {each.name: each for each in report(moment).nodes}


def test_an_equal_report_is_no_new_edition_and_an_equal_node_stays_the_same_object() -> None:
    first = next_edition(EMPTY, report({"a": 0, "b": 0}))
    assert next_edition(first, report({"a": 0, "b": 0})) is first
    second = next_edition(first, report({"a": 0, "b": 1}))
    assert (first.number, second.number) == (1, 2)
    assert second.report.nodes[0] is first.report.nodes[0]


# --- streams ------------------------------------------------------------------------------


def opened(feed: Feed, seen: int = 0) -> Stream:
    stream = feed.open(seen)
    assert stream is not None
    return stream


async def read(stream: Stream) -> list[bytes]:
    return [event async for event in stream]


def test_a_stream_begins_at_once_and_sends_only_the_newest_edition() -> None:
    async def run() -> None:
        feed = Feed(1)
        stream = opened(feed, seen=3)
        assert await anext(stream) == b"retry: 3000\n\n"
        for number in (4, 5, 6):
            feed.publish(number)
        assert await anext(stream) == b"id: 6\nevent: edition\ndata: 6\n\n"
        assert await anext(stream) == b"event: contact\ndata: {}\n\n"
        waiting = asyncio.create_task(read(stream))
        await asyncio.sleep(0)  # it waits
        threading.Thread(target=feed.close).start()
        assert await waiting == []

    asyncio.run(run())


def test_a_waiting_stream_is_notified_by_another_thread() -> None:
    async def run() -> bytes:
        feed = Feed(1)
        stream = opened(feed)
        for _ in range(2):
            await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        threading.Thread(target=feed.publish, args=(9,)).start()
        return await waiting

    assert asyncio.run(run()).startswith(b"id: 9\n")


def test_there_are_no_more_streams_than_are_allowed() -> None:
    feed = Feed(2)
    first, _ = opened(feed), opened(feed)
    assert (feed.open(0), feed.streams, feed.refused) == (None, 2, 1)
    for _ in range(2):
        asyncio.run(first.aclose())
    assert feed.streams == 1
    opened(feed)
    feed.close()
    assert feed.open(0) is None


class JumpingSelector(selectors.DefaultSelector):
    """Waits for no timer: its time jumps to the end of each timeout."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self.now += timeout
        return super().select(timeout and 0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that has the time of its selector."""

    def __init__(self) -> None:
        self._timers = JumpingSelector()
        super().__init__(self._timers)

    def time(self) -> float:
        return self._timers.now


def test_a_quiet_stream_sends_the_age_of_the_data_and_ends_after_10_minutes() -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        stream = opened(Feed(1, contact=lambda: '{"age": 3}'))
        retry, *events = runner.run(read(stream))
    assert retry.startswith(b"retry")
    assert events == [b'event: contact\ndata: {"age": 3}\n\n'] * (600 // 4)
