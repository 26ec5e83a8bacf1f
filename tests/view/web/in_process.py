"""The page in this process, on a socket: the test moves its clock and ends its connections."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from werkzeug.test import Client as TestClient
from werkzeug.wrappers import Response

from common.serving.wsgi import Wsgi
from simulator.api.server import kubeconfig_for
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES
from tests.view.conftest import ManualTime
from view.cluster.connection import connect
from view.model.state import ClusterState
from view.web.app import contact, create_app
from view.web.feed import Feed
from view.web.hosts import Hosts
from view.web.live import Live
from view.web.metrics import Metrics

CONTACT = 0.1
"""Real seconds between two events of a quiet stream."""


class PageInProcess:
    """The page of a simulated cluster; it follows the API server at *api* after its start."""

    def __init__(self, api: str, folder: Path) -> None:
        (folder / "view.kubeconfig").write_text(kubeconfig_for(api))
        connection = connect(str(folder / "view.kubeconfig"), None, {})
        self.time = ManualTime()
        self.feed = feed = Feed(
            8,
            contact=lambda: contact(self.live.freshness, self.time()),
            heartbeat=CONTACT,
        )
        self.live = Live(
            connection.client,
            ClusterState(NAMES),
            feed,
            metrics := Metrics(),
            namespace=connection.namespace,
            timing=self.time.timing(),
        )
        self.app = create_app(self.live, feed, hosts=Hosts(), metrics=metrics)
        self.client = TestClient(self.app, Response)

    def start(self) -> None:
        self.live.start()
        eventually(lambda: not self.live.not_ready(), "the page is ready")

    def text(self, path: str = "/") -> str:
        return self.client.get(path).text


@contextmanager
def page_in_process(api: str, folder: Path) -> Iterator[PageInProcess]:
    """Follow the cluster at *api* until the page is not used any more."""
    page = PageInProcess(api, folder)
    try:
        page.start()
        yield page
    finally:
        page.live.stop()


class PageSocket(ThreadingHTTPServer):
    """Serves a page to browsers, below a prefix as ``kubectl proxy`` does if one is given.

    Without *responds* it accepts connections and sends nothing, like a stopped process.
    """

    daemon_threads = True
    request_queue_size = socket.SOMAXCONN

    def __init__(self, page: PageInProcess, prefix: str = "/") -> None:
        self.application = Wsgi(application=page.app.wsgi_app, largest=1024)
        self.prefix = prefix
        self.responds = threading.Event()
        self.responds.set()
        super().__init__(("127.0.0.1", 0), _Request)
        self.url = f"http://localhost:{self.server_port}{prefix}"


class _Request(BaseHTTPRequestHandler):
    """One request; the connection is closed after the response."""

    server: PageSocket

    def do_GET(self) -> None:
        if not self.path.startswith(self.server.prefix):
            self.send_error(404)
            return
        path, _, query = f"/{self.path.removeprefix(self.server.prefix)}".partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": self.command,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (key.lower().encode(), each.encode()) for key, each in self.headers.items()
            ],
            "server": self.server.server_address,
            "client": self.client_address,
        }
        with suppress(OSError):  # the browser has left
            asyncio.run(self.server.application(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        self.server.responds.wait()  # each request has a thread and an event loop of its own
        if message["type"] == "http.response.start":
            self.send_response_only(message["status"])
            for name, value in message["headers"]:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
        self.wfile.write(message.get("body", b""))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def browsable(page: PageInProcess, prefix: str = "/") -> Iterator[PageSocket]:
    """Serve a page on a free port."""
    with PageSocket(page, prefix) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.responds.set()
            server.shutdown()
            thread.join()
