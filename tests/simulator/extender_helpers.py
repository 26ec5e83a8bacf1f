"""An extender over TLS that a test runs, and what a scheduler is told of it."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme

from simulator.client import Json
from simulator.scheduler.configuration import API_VERSION, SchedulerSettings, parse_configuration
from tests.simulator.api_helpers import CORE

Answer = Callable[[Json], object]


def pass_all(args: Json) -> Json:
    """Keep every node."""
    return {"Nodes": args["Nodes"], "NodeNames": args["NodeNames"]}


@dataclass
class FakeExtender:
    """What it says to each verb, and what it was asked.

    Attributes:
        port: where it listens.
        ca: of its certificate, PEM.
        answers: by verb; a verb without an answer gets 404.
        calls: verb and arguments, in order.
        status: of every answer.
        delay: seconds before every answer.
    """

    port: int
    ca: bytes
    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, Json]] = field(default_factory=list)
    connections: int = 0
    status: int = 200
    raw: bytes | None = None
    delay: float = 0.0

    def asked(self, verb: str) -> list[Json]:
        """Return the arguments of all calls of one verb."""
        return [args for each, args in self.calls if each == verb]

    def entry(self, **changes: Any) -> Json:
        """Make its entry of ``extenders``; ``None`` takes a field out."""
        made = {
            "urlPrefix": f"https://localhost:{self.port}/scheduler/",
            "filterVerb": "filter",
            "enableHTTPS": True,
            "nodeCacheCapable": True,
            "tlsConfig": {"caData": base64.b64encode(self.ca).decode()},
            "managedResources": [{"name": CORE}],
        } | changes
        return {key: value for key, value in made.items() if value is not None}


def configuration(*extenders: Json, **changes: Any) -> Json:
    """Make a KubeSchedulerConfiguration."""
    kind = {"apiVersion": API_VERSION, "kind": "KubeSchedulerConfiguration"}
    return {**kind, "extenders": list(extenders), **changes}


def settings(*extenders: Json, **changes: Any) -> SchedulerSettings:
    """Make the settings of a scheduler."""
    return parse_configuration(configuration(*extenders, **changes))


@contextmanager
def running_extender(
    authority: trustme.CA, *, clients: trustme.CA | None = None, **answers: Answer
) -> Iterator[FakeExtender]:
    """Serve an extender over TLS; with *clients*, only callers with a certificate of theirs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "scheduler.example").configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    fake = FakeExtender(0, authority.cert_pem.bytes(), dict(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            _, _, verb = self.path.rpartition("/")
            args = json.loads(body)
            fake.calls.append((verb, args))
            answer = fake.answers.get(verb)
            time.sleep(fake.delay)  # a slow server, not a wait for something
            content = json.dumps(answer(args) if answer else None).encode()
            if fake.raw is not None:
                content = fake.raw
            self.send_response(fake.status if answer else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def finish_request(self, request: Any, address: Any) -> None:
            """Shake hands in the connection's own thread."""
            fake.connections += 1
            with context.wrap_socket(request, server_side=True) as secure:
                Handler(secure, address, self)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Failed handshakes and callers that give up are part of the tests."""

    server = Server(("127.0.0.1", 0), None)  # type: ignore[arg-type]  # see finish_request
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
