"""Kubernetes quantities, read exactly.

The grammar is that of ``k8s.io/apimachinery/pkg/api/resource`` (``quantity.go``):
a signed decimal number, then a binary suffix (``Ki`` … ``Ei``), a decimal suffix
(``n u m k M G T P E``) or a decimal exponent (``e3``, ``E-3``).
"""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE](?P<exponent>[+-]?[0-9]+))?\Z",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

BLOCK_SIZE_RULE = "must be a whole number of MiB such as 256Mi"
"""The rule of :func:`parse_block_size`, for messages."""

# No sensible quantity is longer or has a larger exponent. Without these limits a hostile
# "1e999999999" would cost time and memory.
_LONGEST_TEXT = 64
_LARGEST_EXPONENT = 99


def parse_quantity(value: object) -> Fraction | int | None:
    """Read a quantity as found in decoded JSON, exactly; ``None`` if it is not one.

    Kubernetes accepts strings and JSON numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    text = value if isinstance(value, str) else repr(value)
    if len(text) < 19 and text.isascii() and text.isdigit():  # the usual case, and much faster
        return int(text)
    match = _QUANTITY.match(text) if len(text) <= _LONGEST_TEXT else None
    return None if match is None else _scale(match)


def format_quantity(count: int) -> str:
    """Return a count as the API server writes it: 1000 is ``1k``."""
    for suffix in ("", "k", "M", "G", "T", "P"):
        if count == 0 or count % 1000:
            return f"{count}{suffix}"
        count //= 1000
    return f"{count}E"


def as_written(value: object) -> object:
    """Return a count as its author wrote it: 3000 for ``3k``, as which the API server writes it.

    Amounts of memory in bytes are written with a larger suffix, which is kept.
    """
    number = parse_quantity(value)
    if isinstance(value, str) and number and value == format_quantity(int(number)):
        return str(number) if value.endswith("k") else value
    return value


def parse_block_size(text: str) -> int | None:
    """Read the size of a memory block, as agent and webhook have it as ``--memory-block``.

    Returns:
        Its bytes; ``None`` if the text breaks :data:`BLOCK_SIZE_RULE`.
    """
    size = parse_quantity(text)
    return None if size is None or size <= 0 or size % (1 << 20) else int(size)


def _scale(match: re.Match[str]) -> Fraction | None:
    number = Fraction(match["sign"] + match["number"])
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    power = _DECIMAL[suffix] if match["exponent"] is None else int(match["exponent"])
    if abs(power) > _LARGEST_EXPONENT:
        return None
    return number * (Fraction(10**power) if power >= 0 else Fraction(1, 10**-power))
