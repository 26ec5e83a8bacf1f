"""The objects of one collection, as a watch shows them."""

import threading
from collections.abc import Callable, Iterator, Mapping

from agent.kubernetes_api.client import Json
from common.apiserver.follower import Follower, skipping_unreadable
from placement.pods import Key


class WatchedObjects:
    """Keeps the objects that *keeps* selects.

    :meth:`run` belongs to one thread; everything else may be called from any.
    """

    def __init__(
        self,
        kind: str,
        list_all: Callable[[], tuple[list[Json], str]],
        watch: Callable[[str], Iterator[tuple[str, Json]]],
        *,
        keeps: Callable[[Json], bool] = lambda _object: True,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty.

        Args:
            kind: what they are, for logs.
            list_all: returns all objects, and the resource version to watch from.
            watch: streams changes since a version.
            keeps: returns whether an object is kept.
            on_change: called after each change.
        """
        self.objects: Mapping[Key, Json] = {}
        """The objects by namespace and name; replaced, not changed."""
        self.synced = threading.Event()
        """Set once the first list has been read."""
        self._kind = kind
        self._list_all = list_all
        self.watch = watch
        self._keeps = keeps
        self._on_change = on_change

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*."""
        Follower(self, trouble=f"no {self._kind}s from the API server").run(stop)

    def list(self) -> str:
        """List the objects; for :class:`Follower`."""
        items, version = self._list_all()
        self._set({_key(each): each for each in items if self._keeps(each)})
        return version

    def apply(self, kind: str, obj: Json) -> None:
        """Apply one event; for :class:`Follower`."""
        with skipping_unreadable(self._kind, obj):
            rest = {key: each for key, each in self.objects.items() if key != _key(obj)}
            kept = kind != "DELETED" and self._keeps(obj)
            self._set({**rest, _key(obj): obj} if kept else rest)

    def _set(self, objects: Mapping[Key, Json]) -> None:
        self.objects = objects
        self.synced.set()
        self._on_change()


def _key(obj: Json) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
