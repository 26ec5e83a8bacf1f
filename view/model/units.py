"""What cores and memory blocks are, in a sentence. Pure."""

from collections.abc import Iterable

_MIB = 2**20


def units(sizes: Iterable[int]) -> str:
    """Return what the units of a request are.

    Args:
        sizes: bytes of a memory block of each node; 0 where that is unknown.
    """
    known = sorted({size // _MIB for size in sizes if size})
    blocks = f" 1 block is {' or '.join(map(str, known))} MiB of a card's memory." if known else ""
    return f"100 cores are one card.{blocks}"
