"""Streams: bounded in number and duration; each sends only the newest edition."""

import asyncio
import selectors
import threading

from view.web.feed import Feed, Stream


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
