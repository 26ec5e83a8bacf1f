"""Messages for failed disk writes, without paths."""

import errno
import os

_SPACE = "the node's admin must free space there"
_RIGHT = "the node's admin must allow the agent to write there"
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EROFS: "the node's admin must move it to a writable file system",
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.ENAMETOOLONG: "the node's admin must set a shorter path",
}


def explain(error: OSError) -> str:
    """Return what went wrong, and what to do about it."""
    why = os.strerror(error.errno) if error.errno else "it failed"
    advice = _ADVICE.get(error.errno or 0, "see the agent's log")
    return f"{why}: {advice}"
