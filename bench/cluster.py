"""A cluster without changes: its API server only lists, page by page."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

_WATCHED_S = 300.0
_PAGE = 500


@dataclass(frozen=True)
class Listing:
    """Objects of one kind.

    Attributes:
        count: the number of objects.
        make: returns an object by its number.
    """

    count: int
    make: Callable[[int], Json]

    def page(self, first: int, limit: int = _PAGE) -> bytes:
        """Encode a page as the API server does."""
        last = min(first + limit, self.count)
        more = {"continue": str(last)} if last < self.count else {}
        page = {
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "7", **more},
            "items": [self.make(number) for number in range(first, last)],
        }
        return json.dumps(page, separators=(",", ":")).encode()


_NOTHING = Listing(0, lambda _number: {})


@contextmanager
def listing(objects: Mapping[str, Listing]) -> Iterator[str]:
    """Start a server of lists and of watches without events; yield its URL.

    Args:
        objects: the objects by resource; all other collections are empty.
    """
    closed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if query.get("watch"):
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                closed.wait(_WATCHED_S)
                return
            first, limit = int(query.get("continue", "0")), int(query.get("limit", _PAGE))
            body = objects.get(url.path.rpartition("/")[2], _NOTHING).page(first, limit)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        closed.set()
        server.shutdown()
        server.server_close()
