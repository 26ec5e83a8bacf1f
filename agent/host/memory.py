"""Keeping the process small and its pauses short."""

import ctypes
import gc

_M_ARENA_MAX = -8  # mallopt(3), malloc.h of glibc
_ARENAS = 2


def limit_arenas() -> None:
    """Limit malloc to two arenas; call this before the first thread starts.

    glibc gives each thread an arena of its own, up to eight a core, and what was freed in one
    is not used by another: an agent with a few dozen threads would look a quarter larger
    than it is. Where the C library knows no such thing, nothing happens.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    except (OSError, AttributeError):
        return


def freeze() -> None:
    """Leave all that there is now out of every garbage collection to come.

    The tickets of a node and what its pods hold live as long as the agent; looking through
    them again and again costs a call of the kubelet a millisecond now and then.
    """
    gc.collect()
    gc.freeze()
