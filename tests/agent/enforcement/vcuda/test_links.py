"""Connections that are passed on, and what they may carry."""

import contextlib
import socket
from collections.abc import Callable

import pytest

from agent.enforcement.vcuda.limits import Limits
from tests.agent.enforcement.vcuda.relay_site import T1, T2, RelaySite, hear


def test_a_peer_that_stops_talking_still_hears_the_answer(relay_site: RelaySite) -> None:
    relay_site.ticket(T1)
    relay_site.upstream.hold.clear()
    with relay_site.connect(T1) as connection:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        relay_site.upstream.hold.set()
        assert hear(connection, 100) == b"question"


def test_a_peer_that_talks_too_much_is_let_go(make: Callable[..., RelaySite]) -> None:
    relay_site = make(Limits(bytes=100_000))
    relay_site.ticket(T1)
    with (
        relay_site.connect(T1) as talker,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        for _ in range(1000):
            talker.sendall(b"x" * 1000)
            talker.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                talker.recv(65536)
            talker.settimeout(20)
        pytest.fail("it may talk without end")


def test_a_peer_that_does_not_listen_holds_nobody_up(make: Callable[..., RelaySite]) -> None:
    """What it is sent stays with the sender: the relay keeps one piece of it."""
    relay_site = make(Limits(bytes=64 << 20, seconds=60))
    relay_site.ticket(T1)
    relay_site.ticket(T2)
    with relay_site.connect(T1) as deaf:
        deaf.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                deaf.send(b"x" * 65536)
        with relay_site.connect(T2) as other:
            assert relay_site.peer(other)
