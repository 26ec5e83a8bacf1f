"""What a disk that does not let us is told of, without paths."""

import errno
import os

_SPACE = "the node's admin must free space there"
_RIGHT = "the node's admin must let the agent write there"
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EROFS: "the node's admin must put it on a file system that can be written",
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.ENAMETOOLONG: "the node's admin must set a shorter path",
}


def explain(error: OSError) -> str:
    """Return what went wrong, and what to do about it."""
    why = os.strerror(error.errno) if error.errno else "it did not work"
    advice = _ADVICE.get(error.errno or 0, "the agent's log tells more")
    return f"{why}: {advice}"
