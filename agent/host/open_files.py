"""How many files this process may have open."""

import resource


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
