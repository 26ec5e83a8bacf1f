"""The addresses of a listener, and the client that is ended if there are too many."""

import asyncio
import socket

import pytest

from common.listener import EVERY_ADDRESS, Listener, listen


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_every_address_has_both_families(client: str) -> None:
    with listen(EVERY_ADDRESS, 0) as listening:
        socket.create_connection((client, listening.getsockname()[1]), timeout=60).close()


def test_a_kernel_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen(EVERY_ADDRESS, 0) as listening:
        assert listening.family == socket.AF_INET


def test_clients_without_a_response_are_ended_first_then_the_longest_idle() -> None:
    tasks: dict[int, asyncio.Task[None]] = {}
    ended: list[int] = []
    full: list[str] = []

    async def serve(accepted: socket.socket) -> None:
        number = len(tasks)
        task = asyncio.current_task()
        assert task is not None
        tasks[number] = task
        with accepted:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

    async def run(listening: socket.socket) -> None:
        listener = Listener(listening, serve, most=4, on_full=lambda: full.append("full"))
        accepting = asyncio.create_task(listener.run())
        clients: list[socket.socket] = []

        async def connect() -> None:
            clients.append(socket.create_connection(listening.getsockname()))
            while len(tasks) < len(clients):  # noqa: ASYNC110 -- of the listener
                await asyncio.sleep(0.001)

        for _ in range(4):
            await connect()
        for number in (0, 1, 3, 0):
            listener.mark_answered(tasks[number])
        await connect()
        assert ended == [2]
        listener.mark_answered(tasks[4])
        for _ in range(2):
            await connect()
            listener.mark_answered(tasks[len(tasks) - 1])
        assert ended == [2, 1, 3]
        assert len(full) == 3
        tasks[2].cancel()  # a client that was ended is not added again
        listener.mark_answered(tasks[2])
        await connect()
        assert ended == [2, 1, 3, 0]
        accepting.cancel()
        for client, task in zip(clients, tasks.values(), strict=True):
            client.close()
            task.cancel()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(run(listening))
