"""Follow a collection of the API server, across errors and expired watches."""

import logging
import threading
from collections.abc import Callable, Sequence

from common.backoff import Backoff
from simulator.client import ApiClient, ApiError, Json, Watch

_log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_GONE = 410


class Reflector:
    """Lists a collection, watches it, and lists again if the watch cannot continue.

    Args:
        client: calls the API server.
        path: path of the collection.
        on_list: called with all objects after each list.
        on_event: called with the type and object of every change.
        selector: a field selector, such as ``spec.nodeName=n1``.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        *,
        on_list: Callable[[Sequence[Json]], None],
        on_event: Callable[[str, Json], None],
        selector: str = "",
    ) -> None:
        self._client = client
        self._path = path
        self._on_list = on_list
        self._on_event = on_event
        self._selector = selector
        self._stopped = threading.Event()
        self._watch: Watch | None = None

    def stop(self) -> None:
        """End :meth:`run` and its watch."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.close()

    def run(self) -> None:
        """Follow the collection until :meth:`stop`."""
        pauses, version = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S), ""
        while not self._stopped.is_set():
            try:
                version = self._follow(version or self._list())
                # If the server ends every watch at once, this pause avoids a tight loop.
                pauses.reset()
                self._stopped.wait(pauses.next())
            except ApiError as error:
                # A broken watch continues at its version; an expired one starts with a list.
                if error.status == _GONE:
                    version = ""
                    continue
                _log.info("not followed", extra={"path": self._path, "reason": str(error)})
                self._stopped.wait(pauses.next())

    def _list(self) -> str:
        query = {"fieldSelector": self._selector} if self._selector else {}
        found = self._client.list(self._path, resourceVersion="0", **query)
        self._on_list(found["items"])
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        with self._client.watch(
            self._path, resource_version=version, field_selector=self._selector
        ) as self._watch:
            if self._stopped.is_set():  # stop() may have run before self._watch was set
                return version
            for event in self._watch:
                version = event.resource_version
                if event.type != "BOOKMARK":
                    self._on_event(event.type, event.object)
        return version
