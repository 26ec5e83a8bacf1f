"""Lists of node names as JSON, where no name needs an escape: as good as all do not. Pure.

Hundreds of names come and go with every pod. What is not plain is left to a JSON decoder.
"""

from collections.abc import Sequence

LONGEST_NAME = 253

_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("\\"))


def read_plain(part: bytes) -> tuple[str, ...] | None:
    """Read the names between the brackets; ``None`` unless it is plain names and nothing else.

    As a JSON decoder and the checks after it would, in a third of the time: a text without
    backslashes and control characters, and with no other quotation marks than those around its
    names.
    """
    if not _is_plain(part):
        return None
    text = part.decode("ascii")
    names = text[1:-1].split('","')
    if not text.startswith('"') or not text.endswith('"') or text.count('"') != 2 * len(names):
        return None
    if not all(names) or text.count(",") != len(names) - 1:
        return None
    return tuple(names) if max(map(len, names)) <= LONGEST_NAME else None


def write_plain(names: Sequence[str]) -> bytes:
    """Return names as JSON; empty unless they need no escapes."""
    text = '"' + '","'.join(names) + '"' if names else ""
    if not text.isascii() or text.count('"') != 2 * len(names):
        return b""
    written = text.encode("ascii")
    return b"[%s]" % written if _is_plain(written) else b""


def _is_plain(text: bytes) -> bool:
    return not text.translate(None, _PLAIN)
