"""``python -m view serve`` as a process: hundreds of browsers, streams, and its end."""

import http.client
import json
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from simulator.api.server import ApiServer
from tests.agent.fakes import eventually
from tests.view.web.browsing import DEADLINE, page_process

pytestmark = pytest.mark.slow


SLOW = {
    b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n": 500,
    b"GET / HTTP/1.1\r\nHost: loc": 700,  # half a header
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n": 90,
}
"""What browsers send before they wait, and how many do: nearly as many as are accepted."""


def test_hundreds_of_browsers_keep_no_probe_waiting(server: ApiServer, tmp_path: Path) -> None:
    with page_process(server.url, tmp_path, "--streams", "500") as page, ExitStack() as browsers:
        for sent, count in SLOW.items():
            for _ in range(count):
                browser = socket.create_connection(("127.0.0.1", page.port))
                browsers.enter_context(browser).sendall(sent)
            for _ in range(3):
                assert page.request("/healthz") == (200, "ok\n")
        streams = "gpu_turnstile_view_streams 500.0"
        eventually(lambda: streams in page.request("/metrics")[1], "500 streams are open")
    assert "WORKER TIMEOUT" not in page.log.read_text()


def test_a_process_with_an_open_stream_ends_at_sigterm(server: ApiServer, tmp_path: Path) -> None:
    with page_process(server.url, tmp_path, "--streams", "1") as page:
        with closing(_open_stream(page.port)) as stream:
            assert stream.readline() == b"retry: 3000\n"
            assert page.request("/events", "HEAD") == (200, "")
            with closing(_open_stream(page.port)) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
            assert stream.readline() == b"\n"
            assert stream.readline().startswith(b"id: ")
            page.process.send_signal(signal.SIGTERM)
            assert stream.read().endswith(b"\n\n")
        assert page.process.wait(DEADLINE) == 0
    lines = [json.loads(line) for line in page.log.read_text().splitlines()]
    assert [each["message"] for each in lines if each["level"] in {"warning", "error"}] == []


def _open_stream(port: int) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    connection.request("GET", "/events?since=1", headers={"Connection": "close"})
    return connection.getresponse()
