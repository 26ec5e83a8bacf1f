"""The kubelet's plugin directory, watched: a kubelet that restarts makes its socket anew."""

import logging
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import watchfiles

from common.backoff import Backoff

log = logging.getLogger(__name__)

# inotify tells of changes at once; this is how soon one is noticed that it did not tell of,
# such as a directory that was made anew.
LOOK_AGAIN_SECONDS = 2.0
# watchfiles wakes up this often to see whether something has changed. A kubelet that has come back
# admits its pods half a second later; a third of what an idle agent cost were wake-ups each 10 ms.
_STEP_MS = 30
_BACKOFF_SECONDS = 0.05, 1.0


def watch(directory: Path, changed: Callable[[], None], stop: threading.Event) -> None:
    """Call *changed* at every change in *directory*, and now and then, until *stop*."""
    retries = Backoff(*_BACKOFF_SECONDS)
    while not stop.is_set():
        watched = identity(directory)
        changed()
        if watched is None:
            stop.wait(retries.next())
            continue
        changes = watchfiles.watch(
            directory,
            watch_filter=None,
            debounce=50,
            step=_STEP_MS,
            stop_event=stop,
            rust_timeout=round(LOOK_AGAIN_SECONDS * 1000),
            yield_on_timeout=True,
            recursive=False,
            raise_interrupt=False,
        )
        try:
            for _ in changes:
                retries.reset()
                changed()
                if identity(directory) != watched:
                    break
        except OSError as error:  # the directory went away, or inotify has no watches left
            log.warning("cannot watch the plugin directory", extra={"reason": str(error)})
            stop.wait(retries.next())
    changed()


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return the identity of a file, ``None`` where it is not: inodes are reused, times are not."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_ctime_ns
