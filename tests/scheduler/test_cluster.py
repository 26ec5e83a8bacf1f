"""Requests of the binder: each has its time, whether or not a thread is free for it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from common.errors import Unavailable
from scheduler import cluster
from scheduler.cluster import Cluster
from simulator.api.server import kubeconfig_for


@pytest.fixture
def silent() -> Iterator[str]:
    """Serve an API that never answers; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        kept = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
        for each in kept:
            each.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_binding_that_waits_for_a_thread_has_no_longer_than_another(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made later could take effect when another replica leads."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", 0.5)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig_for(silent))
    asked = Cluster(kubeconfig, bindings=1)

    async def bind_all() -> list[object]:
        binds = (asked.bind("ns", f"pod-{number}", {}) for number in range(3))
        return list(await asyncio.gather(*binds, return_exceptions=True))

    begun = time.monotonic()
    errors = asyncio.run(bind_all())
    asked.close()
    assert [type(each) for each in errors] == [Unavailable] * 3
    assert time.monotonic() - begun < 60


def test_the_api_server_gives_a_binding_up_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it spent waiting for a thread as well: the lease ends soon after."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", 60.0)
    told: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            (found,) = parse_qs(urlsplit(self.path).query)["timeout"]
            told.append(float(found.removesuffix("s")))
            threading.Event().wait(0.3)  # the second one waits for the thread meanwhile
            self.send_response(201)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    async def bind_all(asked: Cluster) -> None:
        await asyncio.gather(*(asked.bind("ns", f"pod-{number}", {}) for number in range(2)))

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(kubeconfig_for(f"http://127.0.0.1:{server.server_address[1]}"))
        asked = Cluster(kubeconfig, bindings=1)
        asyncio.run(bind_all(asked))
        asked.close()
        server.shutdown()
        thread.join()
    first, second = told
    assert first <= cluster.BIND_SECONDS
    assert second <= cluster.BIND_SECONDS - 0.3
