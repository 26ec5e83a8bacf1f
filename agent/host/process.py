"""What this process asks of its machine: few memory arenas, short pauses, many open files."""

import ctypes
import gc
import resource

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


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return the limit.

    Container runtimes such as containerd 2 grant 1,024, for programs that use ``select()``, and a
    far higher hard limit to all others. Nothing here uses ``select()``. Where the kernel does
    not allow it, nothing happens.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # such as an unlimited hard limit above fs.nr_open
        return soft
    return hard
