"""When the agent looks again without a call, and removes what pods have left."""

import threading
from typing import cast

from agent.app.refresher import Refresher, RefreshPace
from agent.holdings.core import NodeCore


class Recording(threading.Event):
    """A node's core and the agent's end, at a tick; nothing takes time."""

    def __init__(self, *, released: int, end: int) -> None:
        super().__init__()
        self.tick = 0
        self.swept: list[int] = []
        self._released = released
        self._end = end

    def wait(self, _timeout: float | None = None) -> bool:
        self.tick += 1
        return self.tick > self._end

    def refresh(self, *, thorough: bool) -> bool:
        assert thorough == (self.tick % 10 == 0)
        return self.tick == self._released

    def sweep(self) -> None:
        self.swept.append(self.tick)


def test_files_are_removed_soon_after_a_release_and_each_minute() -> None:
    ticks = Recording(released=5, end=300)
    synced = threading.Event()
    synced.set()
    Refresher(
        core=cast(NodeCore, ticks),
        synced=synced,
        stop=ticks,
        on_released=lambda: None,
        on_tick=lambda: None,
        pace=RefreshPace(refresh=5.0, release=0.5),
    ).run()
    assert ticks.swept == [25, 145, 265]  # after 10 s, then each minute
