"""A copy of a collection that follows the API server through whatever happens to it."""

import logging
import threading
from collections.abc import Callable, Sequence

from common.backoff import Backoff
from simulator.client import ApiClient, ApiError, Json

_log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_GONE = 410


class Reflector:
    """Lists a collection, watches it, and lists again where the watch cannot go on.

    Args:
        client: the API server.
        path: the collection.
        on_list: gets all objects, of every list.
        on_event: gets the type and object of every change.
        selector: of fields, such as ``spec.nodeName=n1``.
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

    def run(self, stop: threading.Event) -> None:
        """Follow the collection until *stop* is set."""
        pauses, version = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S), ""
        while not stop.is_set():
            try:
                version = self._watch(version or self._list(), stop)
                # A server that ends every watch at once must not be asked in a tight loop.
                pauses.reset()
                stop.wait(pauses.next())
            except ApiError as error:
                # A watch that broke off goes on where it was; one that expired starts over.
                if error.status == _GONE:
                    version = ""
                    continue
                _log.info("not followed", extra={"path": self._path, "reason": str(error)})
                stop.wait(pauses.next())

    def _list(self) -> str:
        query = {"fieldSelector": self._selector} if self._selector else {}
        found = self._client.list(self._path, resourceVersion="0", **query)
        self._on_list(found["items"])
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str, stop: threading.Event) -> str:
        with self._client.watch(
            self._path, resource_version=version, field_selector=self._selector, stop=stop
        ) as watch:
            for event in watch:
                if stop.is_set():
                    break
                version = event.resource_version
                if event.type != "BOOKMARK":
                    self._on_event(event.type, event.object)
        return version
