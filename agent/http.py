"""The agent's own HTTP endpoint: ``/healthz``, ``/readyz``, ``/metrics``."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agent.errors import SettingsError

Page = Callable[[], tuple[int, str, bytes]]
"""Gives status, content type and body."""


class StatusServer:
    """Serves a few pages on one port, each request in a thread of its own."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        """Bind and serve.

        Raises:
            SettingsError: the port cannot be bound.
        """

        class Handler(BaseHTTPRequestHandler):
            timeout = 5
            server_version = "gpu-turnstile"
            sys_version = ""

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, kind, body = (
                    page() if page else (HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")
                )
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """Probes every few seconds are no news."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise SettingsError(f"http-port: cannot listen on {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def probe(why_not: Callable[[], str]) -> Page:
    """Make a page that answers 200 ``ok``, or 503 with the reason if there is one."""

    def page() -> tuple[int, str, bytes]:
        reason = why_not()
        if reason:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{reason}\n".encode()
        return HTTPStatus.OK, "text/plain", b"ok\n"

    return page
