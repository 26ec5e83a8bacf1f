"""One WSGI call (PEP 3333): a request as httptools has read it, and the answer as bytes."""

import io
import sys
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import httptools

from common.serving.answer import Answer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

VERIFIED = "gpu_turnstile.verified"
"""Key of the environment: whether the client presented a valid certificate."""

DEFER = "gpu_turnstile.defer"
"""Key of the environment: takes a coroutine that returns the answer, which waits for something.

The application calls it instead of ``start_response``, and returns no body.
"""

UNREADABLE = (
    b"HTTP/1.1 400 Bad Request\r\nServer: gpu-turnstile\r\nConnection: close\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 30\r\n\r\n"
    b"the request could not be read\n"
)


class Request:
    """A request, filled while it arrives.

    Attributes:
        target: path and query, as sent.
        fields: names in lower case, and values.
        method: empty until all fields have arrived.
        version: of HTTP.
        keep: whether the client may send more requests afterwards.
        waits: whether the client waits for "100 Continue" before it sends the body.
        body: as far as it has arrived.
        missing: bytes of the body that will not be read.
    """

    __slots__ = ("body", "fields", "keep", "method", "missing", "target", "version", "waits")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.method = ""
        self.version = ""
        self.keep = False
        self.waits = False
        self.body = bytearray()
        self.missing = 0


def client_environ(transport: Any) -> dict[str, Any]:
    """Return the part of the environment that all requests of a connection share."""
    client, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return {
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SCRIPT_NAME": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        VERIFIED: bool(transport.get_extra_info("peercert")),
    }


def make_environ(request: Request, client: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of one request.

    Args:
        request: that has arrived.
        client: as :func:`client_environ` returned it.

    Raises:
        httptools.HttpParserInvalidURLError: the target of the request is no URL.
    """
    url = httptools.parse_url(request.target)
    environ = client | {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": unquote_to_bytes(url.path or b"/").decode("latin-1"),
        "QUERY_STRING": (url.query or b"").decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{request.version}",
        "CONTENT_LENGTH": str(len(request.body) + request.missing),
        "wsgi.input": io.BytesIO(request.body),
    }
    for name, value in request.fields:
        # A name with "_" would look like the same name with "-".
        if b"_" not in name and name != b"content-length":
            key, text = _key(name), value.decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


def respond(application: "WSGIApplication", environ: dict[str, Any], *, keep: bool) -> bytes:
    """Call the application and return its answer as bytes."""
    head = b""

    def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        nonlocal head
        head = _head(status, headers, keep=keep)

    found = application(environ, start_response)
    body = b"".join(found)
    if (close := getattr(found, "close", None)) is not None:
        close()
    return head + body


def write_answer(answer: Answer, *, keep: bool) -> bytes:
    """Return an answer as bytes."""
    return _head(answer.status_line, answer.headers, keep=keep) + answer.body


def _head(status: str, headers: list[tuple[str, str]], *, keep: bool) -> bytes:
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return (
        f"HTTP/1.1 {status}\r\nServer: gpu-turnstile\r\nDate: {_http_date(int(time.time()))}"
        f"\r\nConnection: {'keep-alive' if keep else 'close'}\r\n{fields}\r\n"
    ).encode("latin-1")


@lru_cache(maxsize=256)
def _key(name: bytes) -> str:
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key == "CONTENT_TYPE" else f"HTTP_{key}"


@lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)
