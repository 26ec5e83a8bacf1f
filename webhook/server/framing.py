"""Where one HTTP/1.1 request ends and the next begins, in bytes as they arrive.

Only that: no header is judged here. What cannot be framed is handed on as it is, for the
HTTP parser to refuse in its own words, and is the last request of its connection.
"""

import re
from enum import Enum, auto

LONGEST_HEAD = 2**16
"""More than an HTTP parser takes of request line and header fields."""

_LONGEST_SIZE_LINE = 256
_LONGEST_TRAILERS = 2**14
_MOST_CHUNKS = 2**16  # what a client cuts smaller costs more to put together than it says
_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_CODING = re.compile(rb"\r\ntransfer-encoding[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect[ \t]*:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,18}\Z")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;.*)?\Z", re.DOTALL)


class Progress(Enum):
    """How far a request has come.

    ``LAST`` is a request that ends its connection: it is too large, or its end is unknown.
    """

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    WHOLE = auto()
    LAST = auto()


class Framer:
    """Collects the bytes of one connection and cuts them into requests.

    Args:
        largest_body: of a larger one only the head is handed on, with a length that says so.
    """

    def __init__(self, *, largest_body: int) -> None:
        self._largest_body = largest_body
        self._buffer = bytearray()
        self._progress = Progress.NOTHING
        self._begin()

    def _begin(self) -> None:
        self._searched = 0  # up to here there is no end of the head
        self._end = 0  # of the request, as far as it is known
        self._head = b""  # of a chunked request; its body is put together beside the buffer
        self._chunks: _Chunks | None = None
        self.expects_continue = False

    def __len__(self) -> int:
        """Count the bytes that are held."""
        return len(self._buffer) + (len(self._chunks.body) if self._chunks else 0)

    @property
    def progress(self) -> Progress:
        """How far the first request in line has come."""
        return self._progress

    def receive(self, data: bytes) -> Progress:
        """Take what has arrived; what belongs to a later request is kept for it."""
        self._buffer += data
        if self._progress is Progress.NOTHING and self._buffer:
            self._progress = Progress.HEAD
        if self._progress is Progress.HEAD:
            self._progress = self._read_head()
        if self._progress is Progress.BODY:
            if self._chunks is not None:
                self._progress = self._chunks.read(self._buffer)
            elif len(self._buffer) >= self._end:
                self._progress = Progress.WHOLE
        return self._progress

    def take(self) -> bytes:
        """Give the request that is ``WHOLE`` or ``LAST``, and begin with the next.

        A chunked one is given with its length. A promise to wait for "100 Continue" is left
        out: it was kept when it was noticed.
        """
        if self._chunks is not None:
            request = self._take_chunked(self._chunks)
        else:
            end = self._end if self._progress is Progress.WHOLE else len(self._buffer)
            with memoryview(self._buffer) as view:
                request = bytes(view[:end])
            del self._buffer[:end]
        if self.expects_continue:
            head, gap, body = request.partition(b"\r\n\r\n")
            request = _EXPECT.sub(b"", head + b"\r\n")[:-2] + gap + body
        self._begin()
        self._progress = Progress.NOTHING
        self.receive(b"")
        return request

    def _take_chunked(self, chunks: "_Chunks") -> bytes:
        """Write the length that it has, or one that it has not where it is too large or broken."""
        body = bytes(chunks.body)
        length = len(body)
        if self._progress is Progress.LAST:
            self._buffer.clear()
            length = self._largest_body + 1 if chunks.too_large else length + 1
        return _CODING.sub(b"\r\nContent-Length: %d" % length, self._head, count=1) + b"\r\n" + body

    def _read_head(self) -> Progress:
        found = self._buffer.find(b"\r\n\r\n", self._searched)
        if found < 0:
            self._searched = max(len(self._buffer) - 3, 0)
            return Progress.LAST if len(self._buffer) > LONGEST_HEAD else Progress.HEAD
        body = found + 4
        head = bytes(self._buffer[: found + 2])
        lengths, codings = _LENGTH.findall(head), _CODING.findall(head)
        self.expects_continue = _EXPECT.search(head) is not None
        self._end = body
        if codings:
            if lengths or [each.lower() for each in codings] != [b"chunked"]:
                return Progress.LAST
            self._head, self._chunks = head, _Chunks(self._largest_body)
            del self._buffer[:body]
            return Progress.BODY
        if not lengths:
            return Progress.WHOLE
        length = int(lengths[0]) if len(lengths) == 1 and _DIGITS.match(lengths[0]) else None
        if length is None or length > self._largest_body:
            return Progress.LAST
        self._end = body + length
        return Progress.BODY


class _Chunks:
    """The body of a chunked request, put together as it arrives.

    Attributes:
        body: what was in the chunks so far.
        too_large: whether there is more than may be.
    """

    __slots__ = ("_count", "_largest", "_trailing", "body", "too_large")

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._count = 0
        self._trailing = False
        self.body = bytearray()
        self.too_large = False

    def read(self, buffer: bytearray) -> Progress:
        """Take every whole chunk out of *buffer*; leave what has not arrived whole."""
        at = 0
        progress = None
        while progress is None and not self._trailing:
            progress, at = self._step(buffer, at)
        del buffer[:at]
        return self._end(buffer) if progress is None else progress

    def _step(self, buffer: bytearray, at: int) -> tuple[Progress | None, int]:
        """Take one chunk; give where the next begins, and how it stands when there is none."""
        line_end = buffer.find(b"\r\n", at, at + _LONGEST_SIZE_LINE)
        if line_end < 0:
            too_long = len(buffer) - at >= _LONGEST_SIZE_LINE
            return (Progress.LAST if too_long else Progress.BODY), at
        size = _SIZE.match(bytes(buffer[at:line_end]))
        length = -1 if size is None else int(size[1], 16)
        begin = line_end + 2
        end = begin + length
        self._count += 1
        if length == 0:
            self._trailing = True
            return None, line_end
        self.too_large = len(self.body) + length > self._largest
        if length < 0 or self.too_large or self._count > _MOST_CHUNKS:
            return Progress.LAST, at
        if len(buffer) < end + 2:
            self._count -= 1  # it is looked at again
            return Progress.BODY, at
        if buffer[end : end + 2] != b"\r\n":
            return Progress.LAST, at
        self.body += buffer[begin:end]
        return None, end + 2

    def _end(self, buffer: bytearray) -> Progress:
        """Look for the empty line after the trailers, which nobody here reads."""
        found = buffer.find(b"\r\n\r\n")
        if found < 0:
            return Progress.LAST if len(buffer) > _LONGEST_TRAILERS else Progress.BODY
        del buffer[: found + 4]
        return Progress.WHOLE
