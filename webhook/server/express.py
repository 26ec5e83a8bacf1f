"""The short way for reviews: HTTP/1.1 requests exactly as an API server writes them.

gunicorn's parser, the WSGI environment and Flask together cost more than the review they
carry. A request whose every byte is ordinary needs none of them; what is unusual in any
way, if only by a space, is left to those who know all of HTTP. Pure.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus

_LONGEST_FIELD, _MOST_FIELDS = 1024, 30
_ORDINARY = re.compile(
    rb"POST (?P<path>/[a-z/]{1,64})(?:\?timeout=[0-9]{1,6}m?s)? HTTP/1\.1\r\n"
    rb"(?P<fields>(?:[A-Za-z][-A-Za-z0-9]{0,63}: [!-~](?:[ -~]{0,%d}[!-~])?\r\n){1,%d})\r\n"
    % (_LONGEST_FIELD, _MOST_FIELDS)
)
_KNOWN = frozenset(
    (
        *(b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type"),
        *(b"host", b"traceparent", b"tracestate", b"user-agent"),
    )
)
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]-]{1,255}\Z")


@dataclass(frozen=True, slots=True)
class Ordinary:
    """An ordinary request.

    Attributes:
        path: what it is sent to, known or not.
        content_type: of the body.
        begin: where in the request the body begins; it goes on to the end.
        keep: whether its client wants to go on afterwards.
    """

    path: str
    content_type: str
    begin: int
    keep: bool = True


def read(request: bytes) -> Ordinary | None:
    """Read a whole request; ``None`` when it is not ordinary in every way."""
    match = _ORDINARY.match(request)
    if match is None:
        return None
    found: dict[bytes, bytes] = {}
    for line in match["fields"].splitlines():
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name in found or name not in _KNOWN:
            return None
        found[name] = value
    begin = match.end()
    if found.get(b"content-length") != b"%d" % (len(request) - begin):
        return None
    content_type = found.get(b"content-type")
    connection = found.get(b"connection", b"keep-alive").lower()
    if content_type is None or connection not in (b"keep-alive", b"close"):
        return None
    if not _HOST.match(found.get(b"host", b"")):
        return None
    return Ordinary(
        match["path"].decode("ascii"), content_type.decode("ascii"), begin, connection != b"close"
    )


def write(status: HTTPStatus, media: str, body: bytes, *, date: str, keep: bool) -> bytes:
    """Write an answer.

    Args:
        status: of the answer.
        media: its content type.
        body: its body.
        date: the time, as HTTP writes it.
        keep: whether the connection goes on.
    """
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: gpu-turnstile\r\nDate: {date}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
