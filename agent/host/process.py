"""Settings of this process: few memory arenas, short garbage collections, many open files."""

import ctypes
import gc
import resource

_M_ARENA_MAX = -8  # mallopt(3), malloc.h of glibc
_ARENAS = 2


def limit_arenas() -> None:
    """Limit malloc to two arenas; call this before the first thread starts.

    glibc gives each thread an arena, up to eight for each core, and memory that is freed in one is
    not used by another: an agent with a few dozen threads would seem a quarter larger than it is.
    If the C library has no such option, nothing happens.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    except (OSError, AttributeError):
        return


def freeze() -> None:
    """Exclude all present objects from future garbage collections.

    The slots of a node and the snapshot of its pods exist as long as the agent. Traversing them in
    each collection would sometimes delay a call of the kubelet by a millisecond.
    """
    gc.collect()
    gc.freeze()


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return the limit.

    Container runtimes such as containerd 2 set a soft limit of 1,024, for programs that use
    ``select()``, and a far higher hard limit. Nothing here uses ``select()``. If the kernel does
    not allow the change, nothing happens.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # for example an unlimited hard limit above fs.nr_open
        return soft
    return hard
