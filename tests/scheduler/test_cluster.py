"""Requests of the binder: each has its time, whether or not a thread is free for it."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from common.errors import Unavailable
from scheduler import cluster
from scheduler.cluster import Cluster
from simulator.api.server import kubeconfig_for


@pytest.fixture
def silent() -> Iterator[tuple[str, list[bytes]]]:
    """Serve an API that reads and never answers: its address, and what it has read."""
    read: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        kept = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
                read.append(connection.recv(65536))
        for each in kept:
            each.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", read
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_binding_that_waits_for_a_thread_has_no_longer_than_another(
    silent: tuple[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made later could take effect when another replica leads."""
    monkeypatch.setattr(cluster, "BIND_SECONDS", 0.5)
    url, read = silent
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubeconfig_for(url))
    asked = Cluster(kubeconfig, bindings=1)

    async def bind_all() -> list[object]:
        binds = (asked.bind("ns", f"pod-{number}", {}) for number in range(3))
        return list(await asyncio.gather(*binds, return_exceptions=True))

    begun = time.monotonic()
    errors = asyncio.run(bind_all())
    asked.close()
    assert [type(each) for each in errors] == [Unavailable] * 3
    assert time.monotonic() - begun < 60
    assert {each.split(b" ")[1].partition(b"?")[0] for each in read} == {
        b"/api/v1/namespaces/ns/pods/pod-0/binding"
    }
