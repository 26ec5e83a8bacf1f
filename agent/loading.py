"""Calls that wait until the agent knows enough to answer them.

While no plugin is registered, the kubelet fails every GPU pod that it admits (fact K19); a
call, in contrast, may take its time. So the agent registers first and reads the kubelet's record
and the API server's pods afterwards.
"""

import threading
from collections.abc import Sequence

from agent.answer import Answer
from agent.server import Calls
from agent.tickets import Resource


class LoadedFirst:
    """Passes calls on once *loaded* is set. Implements :class:`agent.server.Calls`."""

    def __init__(self, calls: Calls, loaded: threading.Event) -> None:
        """Let *calls* answer.

        Args:
            calls: what answers.
            loaded: set when it can; its owner must set it within the time that a call may take.
        """
        self._calls = calls
        self._loaded = loaded

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose places."""
        self._loaded.wait()
        return self._calls.prefer(resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate and book places."""
        self._loaded.wait()
        return self._calls.allocate(resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove a container."""
        self._loaded.wait()
        self._calls.prestart(resource, device_ids)
