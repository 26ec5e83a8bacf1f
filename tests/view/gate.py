"""A way to the simulated API server on which rights can be taken and answers held back."""

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

DEADLINE = 60


class Gate:
    """What passes.

    Attributes:
        denied: regular expressions of ``verb path``, such as ``list /api/v1/nodes``.
        asked: the same of each request so far.
        silent: whether requests are taken and nothing is answered, as by a stopped process.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.denied: set[str] = set()
        self.asked: list[str] = []
        self.headers: list[Any] = []
        self.silent = False
        self._open: set[socket.socket] = set()
        self.url = ""

    def freeze(self) -> None:
        """Answer nothing from now on; what is open stays open, and silent."""
        self.silent = True

    def thaw(self) -> None:
        self.silent = False

    def cut(self) -> None:
        """End all watches: a server lets them run on when rights are taken away."""
        for each in [*self._open]:
            with contextlib.suppress(OSError):  # not closed: its reader has it, until more comes
                each.shutdown(socket.SHUT_RDWR)

    def refuses(self, asked: str) -> bool:
        return any(re.fullmatch(each, asked) for each in self.denied)


def _handler(gate: Gate, over: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            path = urlsplit(self.path)
            verb = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}.get(self.command, "create")
            if verb == "get" and re.search(r"/(nodes|pods|events)$", path.path):
                verb = "watch" if "watch=true" in path.query else "list"
            asked = f"{verb} {path.path}"
            gate.asked.append(asked)
            gate.headers.append(self.headers)
            while gate.silent and not over.wait(0.02):
                pass
            if gate.refuses(asked):
                self._refuse(f'User "ana" cannot {asked}')
                return
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size) if size else None
            connection = http.client.HTTPConnection(
                gate.upstream.hostname or "", gate.upstream.port, timeout=DEADLINE
            )
            with contextlib.closing(connection):
                headers = {key: value for key, value in self.headers.items() if key != "Host"}
                connection.request(self.command, self.path, body, headers)
                upstream = connection.sock
                answer = connection.getresponse()
                if verb == "watch":
                    self._stream(answer, upstream)
                else:
                    self._answer(answer.status, answer.read())

        do_GET = do_POST = do_PATCH = do_DELETE = _pass  # noqa: N815 -- the server's names

        def _stream(self, answer: http.client.HTTPResponse, upstream: socket.socket) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            gate._open.add(upstream)
            try:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    while part := answer.read1(65536):
                        while gate.silent and not over.wait(0.02):
                            pass
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
            finally:
                gate._open.discard(upstream)

        def _refuse(self, message: str) -> None:
            status = {"kind": "Status", "message": message, "code": 403, "reason": "Forbidden"}
            self._answer(403, json.dumps(status).encode())

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def gate_to(upstream: str) -> Iterator[Gate]:
    """Open a gate to the server at a URL."""
    gate, over = Gate(upstream), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(gate, over))
    server.daemon_threads = True
    gate.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        over.set()
        gate.thaw()
        gate.cut()
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)
