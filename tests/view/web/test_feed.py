"""Streams: bounded in number and life, told of the newest edition alone."""

from collections.abc import Iterator

from view.web.feed import HEARTBEAT_SECONDS, LIFE_SECONDS, Feed


def test_a_stream_begins_at_once_and_tells_of_the_newest_edition_alone() -> None:
    feed = Feed(1)
    stream = feed.open(seen=3)
    assert stream is not None
    assert next(stream) == b"retry: 3000\n\n"
    for number in (4, 5, 6):
        feed.publish(number)
    assert next(stream) == b"id: 6\nevent: edition\ndata: 6\n\n"
    feed.close()
    assert list(stream) == []


def test_who_has_an_older_edition_is_told_at_once() -> None:
    feed = Feed(1)
    feed.publish(9)
    stream = feed.open(seen=-1)
    assert stream is not None
    assert next(stream).startswith(b"retry")
    assert next(stream).startswith(b"id: 9\n")


def test_there_are_no_more_streams_than_are_allowed() -> None:
    feed = Feed(2)
    first, second = feed.open(0), feed.open(0)
    assert first is not None
    assert second is not None
    assert (feed.open(0), feed.streams, feed.refused) == (None, 2, 1)
    first.close()
    first.close()  # as a server may
    assert feed.streams == 1
    assert feed.open(0) is not None
    feed.close()
    assert feed.open(0) is None


def ticks(*times: float) -> Iterator[float]:
    yield from times


def test_a_quiet_stream_beats_and_an_old_one_ends() -> None:
    clock = ticks(0, 0, HEARTBEAT_SECONDS, LIFE_SECONDS - 1, LIFE_SECONDS)
    stream = Feed(1, clock=lambda: next(clock)).open(0)
    assert stream is not None
    assert next(stream).startswith(b"retry")
    assert next(stream) == b": heartbeat\n\n"
    assert list(stream) == []
