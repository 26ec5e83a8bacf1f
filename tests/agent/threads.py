"""Something that runs in a thread of its own, for the length of a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running(
    run: Callable[[], object], stop: Callable[[], object], within: float = 120.0
) -> Iterator[None]:
    """Run *run* in a thread, and end it by *stop*, in *within* seconds."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(within)
        assert not thread.is_alive()
