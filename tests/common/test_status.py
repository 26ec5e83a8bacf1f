"""The pages of probes and metrics, whatever their clients do, and the listener below them."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from common.errors import SettingsError
from common.listener import EVERY_ADDRESS, Listener, listen
from common.status import Page, StatusServer, paced, probe
from tests.agent.fakes import DEADLINE_S, FakeClock, eventually


class Site:
    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.problem = ""
        self.metrics = b"up 1\n"
        self.released = threading.Event()  # until then the metrics are not made
        self.released.set()
        self.server = self.serve()

    def serve(self, *, deadline: float = 600.0, **limits: Any) -> StatusServer:
        pages: dict[str, Page] = {"/readyz": probe(lambda: self.problem), "/metrics": self._metrics}
        limits["deadline"] = deadline  # long enough that it ends no connection of a slow machine
        server = StatusServer("127.0.0.1", 0, pages, slow=["/metrics"], **limits)
        for _ in range(2):
            self._stack.callback(server.stop)  # a second time does nothing
        return server

    def _metrics(self) -> tuple[int, str, bytes]:
        assert self.released.wait(DEADLINE_S)
        return 200, "text/plain; version=0.0.4", self.metrics


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        made = Site(stack)
        stack.callback(made.released.set)
        yield made


def get(server: StatusServer, path: str) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False, timeout=DEADLINE_S) as pool:
        return pool.request("GET", f"http://127.0.0.1:{server.port}{path}")


def test_a_probe_is_ok_or_says_problem(site: Site) -> None:
    response = get(site.server, "/readyz")
    assert (response.status, response.data) == (200, b"ok\n")
    site.problem = "not registered"
    response = get(site.server, "/readyz?verbose")
    assert (response.status, response.data) == (503, b"not registered\n")
    response = get(site.server, "/metrics")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert response.headers["Content-Length"] == "5"
    assert response.headers["Server"].strip() == "gpu-turnstile"
    assert response.data == b"up 1\n"


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        ("GET /nothing", b"404", b"not found\n"),
        ("GET /../readyz", b"404", b"not found\n"),
        ("POST /readyz", b"501", b"only GET is served\n"),
    ],
)
def test_any_other_request_is_refused(
    site: Site, request_: str, status: bytes, text: bytes
) -> None:
    # Written by hand: a client would change the path.
    with clients(site.server.port, 1, f"{request_} HTTP/1.0\r\n\r\n".encode()) as (connection,):
        response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 " + status)
    assert response.endswith(text)


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=r"http-port: cannot listen on 127.0.0.1:\d+: "):
            StatusServer("127.0.0.1", port, {}, slow=[])


@contextlib.contextmanager
def clients(port: int, count: int, sends: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as held:
        made = []
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
            made.append(held.enter_context(connection))
            with contextlib.suppress(OSError):  # the server may have closed it already
                connection.sendall(sends)
        yield made


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(4096), b""))


def test_hundreds_of_slow_clients_need_no_threads_and_delay_no_probe(site: Site) -> None:
    before = threading.active_count()
    with clients(site.server.port, 300, b"GET /readyz HTTP/1.1\r\nHost:"):
        assert get(site.server, "/readyz").status == 200
        assert threading.active_count() <= before


def test_no_more_connections_than_allowed_stay_open(site: Site) -> None:
    """The oldest are closed: a probe ends within milliseconds, so they are no probes."""

    def ended(connection: socket.socket) -> bool:
        connection.setblocking(False)
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    server = site.serve(connections=4)
    with clients(server.port, 20, b"GET ") as made:
        eventually(lambda: sum(map(ended, made)) == 16, "all but the newest are closed")
        assert not any(map(ended, made[-4:]))
        assert get(server, "/readyz").status == 200


def test_a_client_that_trickles_is_disconnected_in_time(site: Site) -> None:
    """A timeout for each byte would never be reached: the whole connection has a deadline."""

    def disconnected() -> bool:
        try:
            connection.sendall(b"x")
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    server = site.serve(deadline=0.1)
    request = b"GET /readyz HTTP/1.1\r\n"
    with clients(server.port, 1, request) as (connection,):
        connection.settimeout(0.01)
        eventually(disconnected, "it is disconnected")


def test_scrapes_that_hang_delay_no_probe(site: Site) -> None:
    site.released.clear()
    before = threading.active_count() + 1  # one makes the metrics
    with clients(site.server.port, 20, b"GET /metrics HTTP/1.0\r\n\r\n") as made:
        for _ in range(5):
            assert get(site.server, "/readyz").status == 200
        assert threading.active_count() <= before
        site.released.set()
        for each in made:
            assert read_all(each).endswith(b"up 1\n")


def test_clients_that_do_not_read_their_response_delay_no_other(site: Site) -> None:
    site.metrics = b"x" * (8 << 20)
    with clients(site.server.port, 10, b"GET /metrics HTTP/1.0\r\n\r\n"):
        assert get(site.server, "/readyz").status == 200
        assert len(get(site.server, "/metrics").data) == 8 << 20


def test_every_response_closes_its_connection(site: Site) -> None:
    request = b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"
    with clients(site.server.port, 1, request * 2) as (connection,):
        response = read_all(connection)
    assert response.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close\r\n" in response


def test_a_page_takes_at_most_a_tenth_of_a_cpu() -> None:
    clock, made = FakeClock(), list[float]()

    def costly() -> tuple[int, str, bytes]:
        made.append(clock.now)
        clock.now += 0.02
        return 200, "text/plain", str(len(made)).encode()

    page = paced(costly, clock=clock)
    start = clock.now
    bodies = []
    while clock.now < start + 1:
        bodies.append(page()[2])
        clock.now += 0.01
    assert len(made) <= 6
    assert bodies[-1] == str(len(made)).encode()


_SCRIPT = """
import resource, sys
from common.status import StatusServer, probe
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
server = StatusServer("127.0.0.1", 0, {"/readyz": probe(lambda: "")}, slow=[], connections=32)
print(server.port, flush=True)
sys.stdin.read()
server.stop()
"""


def test_a_process_without_free_descriptors_still_serves_probes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with clients(port, 40, b"GET "):
            with urllib3.PoolManager(retries=False, timeout=DEADLINE_S) as pool:
                response = pool.request("GET", f"http://127.0.0.1:{port}/readyz")
            assert response.status == 200
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


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
