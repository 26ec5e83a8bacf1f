"""An HTTP server with responses from a test; the only one beside the simulated API server."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[[str, bytes], tuple[int, bytes]]
"""Returns status and body of the response, by path and body of a POST."""


@contextmanager
def answering(
    respond: Respond, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> Iterator[int]:
    """Serve on a free port; hands over the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            status, body = respond(self.path, sent)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def finish_request(self, request: Any, address: Any) -> None:
            """Shake hands in the connection's own thread."""
            if tls is None:
                Handler(request, address, self)
                return
            with tls.wrap_socket(request, server_side=True) as secure:
                Handler(secure, address, self)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Failed handshakes are part of the tests."""

    server = Server((host, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
