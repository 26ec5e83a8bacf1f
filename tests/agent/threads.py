"""Something that runs in a thread of its own, for the length of a block."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running(
    run: Callable[[], object], stop: Callable[[], object], within: float = 10.0
) -> Iterator[None]:
    """Run *run* in a thread, and end it by *stop* in so many seconds."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        began = time.monotonic()
        stop()
        thread.join(20)
        assert not thread.is_alive()
        assert time.monotonic() - began < within
