"""A cluster that stands still: an API server that only lists, page by page."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

_WATCHED_S = 300.0
_PAGE = 500


@dataclass(frozen=True)
class Listing:
    """Objects of one kind: how many, and each by its number."""

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

    def pages(self) -> list[bytes]:
        """Encode all."""
        return [self.page(first) for first in range(0, self.count, _PAGE)]


_NOTHING = Listing(0, lambda _number: {})


@contextmanager
def listing(objects: Mapping[str, Listing], *, kept: bool = False) -> Iterator[str]:
    """Serve lists by resource, and watches in which nothing happens; hand over the URL.

    Args:
        objects: by resource; of any other there are none.
        kept: encode all pages now, and not when they are asked for.
    """
    over = threading.Event()

    def make(resource: str, first: int, limit: int) -> bytes:
        return objects.get(resource, _NOTHING).page(first, limit)

    answer = lru_cache(maxsize=None)(make) if kept else make
    for resource, each in objects.items() if kept else ():
        for first in range(0, each.count, _PAGE):
            answer(resource, first, _PAGE)

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
                over.wait(_WATCHED_S)
                return
            first, limit = int(query.get("continue", "0")), int(query.get("limit", _PAGE))
            body = answer(url.path.rpartition("/")[2], first, limit)
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
        over.set()
        server.shutdown()
        server.server_close()
