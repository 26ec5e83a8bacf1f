"""The listener in this process: real sockets and TLS, clients on threads."""

import asyncio
import errno
import gc
import socket
import struct
import tracemalloc
from asyncio import sslproto
from typing import Any

import pytest

from common.serving.connections import Limits, State
from common.serving.protocol import HttpConnection
from tests.common.serving.stages import DEADLINE, GET, Make, run

SLOW = GET.replace(b"/a", b"/slow")


def test_requests_are_answered_and_the_connection_kept(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            client = await stage.connect()
            for _ in range(3):
                assert await stage.ask(client) == b"answer"
            assert (stage.told.open, len(stage.connections)) == (1, 1)

    run(test)


def test_after_a_last_answer_the_client_sees_the_end(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            stage.keeps_alive = False
            client = await stage.connect()
            assert await stage.ask(client, GET + b"x" * 30_000) == b"answer"
            assert await stage.run(lambda: client.recv(100)) == b""
            client.close()
            await stage.wait(lambda: stage.told.open == 0)
            assert stage.told.ends == {}

    run(test)


def test_a_client_that_does_not_confirm_the_end_is_ended(make: Make) -> None:
    async def test() -> None:
        limits = Limits(10, 10**8, dict.fromkeys(State, 60) | {State.LINGERING: 0.1})
        async with make(limits=limits) as stage:
            stage.keeps_alive = False
            client = await stage.connect()
            assert await stage.ask(client) == b"answer"

            def overdue() -> bool:
                stage.connections.end_overdue()
                return stage.told.open == 0

            await stage.wait(overdue)
            assert stage.told.ends == {("lingering", "timeout"): 1}

    run(test)


def test_an_answer_that_does_not_fit_is_sent_when_the_client_takes_it(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            stage.answer = b"x" * 20_000_000
            client = await stage.connect()
            client.sendall(GET * 2)
            await stage.wait(lambda: stage.told.flying == 1)

            def take(count: int) -> int:
                taken = 0
                while taken < count and (piece := client.recv(65536)):
                    taken += len(piece)
                return taken

            assert await stage.run(lambda: take(40_000_000)) >= 40_000_000
            await stage.wait(lambda: stage.told.flying == 0)

    run(test)


def test_a_handshake_that_takes_too_long_is_ended(make: Make) -> None:
    async def test() -> None:
        async with make(handshake_seconds=0.1) as stage:
            client = await stage.plain()
            assert await stage.run(lambda: client.recv(1)) == b""
            assert stage.told.ends == {("handshake", "timeout"): 1}

    run(test)


def test_a_half_open_handshake_makes_room(make: Make) -> None:
    async def test() -> None:
        async with make(limits=Limits(2, 10**8)) as stage:
            half_open, also = await stage.plain(), await stage.connect()
            late = await stage.connect()
            assert await stage.run(lambda: half_open.recv(1)) == b""
            assert stage.told.ends == {("handshake", "no-room"): 1}
            for client in (late, also):
                assert await stage.ask(client) == b"answer"

    run(test)


def test_a_client_that_speaks_no_tls_is_ended_without_a_reset(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            client = await stage.plain()
            client.sendall(GET)
            assert await stage.run(lambda: client.recv(100)) == b""
            client.sendall(GET)  # it may not have read the end yet
            client.close()
            await stage.wait(lambda: stage.told.open == 0)
            assert stage.told.ends == {("handshake", "tls"): 1}

    run(test)


@pytest.mark.parametrize(
    ("sent", "reset"), [(None, True), (b"", False), (GET[:5], True), (GET, False), (GET, True)]
)
def test_a_client_that_goes_away_leaves_nothing(
    make: Make, sent: bytes | None, reset: bool
) -> None:
    async def test() -> None:
        async with make() as stage:
            client = await (stage.plain() if sent is None else stage.connect())
            if sent:
                client.sendall(sent)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await stage.wait(lambda: stage.told.open == 0)
            assert (stage.told.flying, stage.told.ends) == (0, {})

    run(test)


def test_draining_ends_in_time_whatever_is_under_way(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            client = await stage.connect()
            client.sendall(GET[:5])
            await stage.wait(lambda: stage.told.flying == 1)
            await stage.listener.drain(seconds=0.1)
            assert await stage.run(lambda: client.recv(1)) == b""

    run(test)


def test_without_a_file_descriptor_to_spare_a_connection_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = socket.socket.accept
    failures = iter([OSError(errno.EMFILE, "too many open files")])

    def scarce(listening: socket.socket) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return accept(listening)

    async def test() -> None:
        async with make() as stage:
            first = await stage.connect()
            monkeypatch.setattr("socket.socket.accept", scarce)
            assert await stage.ask(await stage.connect()) == b"answer"
            assert await stage.run(lambda: first.recv(1)) == b""
            assert stage.told.ends == {("fresh", "no-room"): 1}

    run(test)


def test_a_failed_handshake_leaves_nothing_for_the_garbage_collector(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            gc.collect()
            gc.disable()
            try:
                for sent in (b"", GET):
                    client = await stage.plain()
                    client.sendall(sent)
                    client.close()
                    await stage.wait(lambda: stage.told.open == 0)
                await stage.wait(lambda: not _instances(sslproto.SSLProtocol))
                assert _instances(HttpConnection) == 0
            finally:
                gc.enable()

    run(test)


def _instances(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


def test_a_thousand_handshakes_do_not_fill_the_memory_of_a_pod(make: Make) -> None:
    async def test() -> None:
        async with make(limits=Limits(1000, 10**8)) as stage:
            await stage.plain()
            tracemalloc.start()
            try:
                for _ in range(10):
                    await stage.plain()
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held / 10 < 64 * 1024

    run(test)


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_answer_that_waits_holds_up_its_own_connection_alone(make: Make, pieces: int) -> None:
    async def test() -> None:
        async with make() as stage:
            slow, quick = await stage.connect(), await stage.connect()
            requests = [SLOW + GET] if pieces == 1 else [SLOW, GET]
            for each in requests:
                slow.sendall(each)
                await stage.inside.wait()
            assert await stage.ask(quick) == b"answer"
            assert stage.told.flying == 1
            stage.go_on.set()
            got = b""
            while got.count(b"\r\n\r\n") < 2 or not got.endswith(b"answer"):
                got += await stage.run(lambda: slow.recv(65536))
            assert got.index(b"slow") < got.index(b"answer")  # in the order of the requests
            await stage.wait(lambda: stage.told.flying == 0)

    run(test)


def test_a_client_that_leaves_before_its_answer_is_forgotten(make: Make) -> None:
    async def test() -> None:
        async with make(limits=Limits(1, 10**8)) as stage:
            slow = await stage.connect()
            slow.sendall(SLOW)
            await stage.inside.wait()
            quick = await stage.connect()  # takes the only place
            stage.go_on.set()
            assert await stage.ask(quick) == b"answer"
            assert stage.told.ends == {("answering", "no-room"): 1}

    run(test)


def test_draining_waits_for_an_answer_that_waits(make: Make) -> None:
    async def test() -> None:
        async with make() as stage:
            slow = await stage.connect()
            asked = asyncio.create_task(stage.ask(slow, SLOW))
            await stage.inside.wait()
            draining = asyncio.create_task(stage.listener.drain(DEADLINE))
            await asyncio.sleep(0)
            stage.go_on.set()
            assert await asked == b"slow"
            slow.close()
            await draining

    run(test)
