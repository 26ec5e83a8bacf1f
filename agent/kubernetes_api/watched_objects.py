"""The objects of one collection, as a watch shows them."""

import threading
from collections.abc import Callable, Iterable, Mapping

from agent.kubernetes_api.client import Api, Json
from common.apiserver.follower import Collection, Follower
from placement.pods import Key


class WatchedObjects:
    """Keeps the objects that *keeps* selects.

    :meth:`run` belongs to one thread; everything else may be called from any.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        api: Api,
        path: str,
        kind: str,
        *,
        fields: str = "",
        keeps: Callable[[Json], bool] = lambda _object: True,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty; *kind* is what the objects are, for logs, *fields* a field selector."""
        self.objects: Mapping[Key, Json] = {}
        """The objects by namespace and name; replaced, not changed."""
        self.synced = threading.Event()
        """Set once the first list has been read."""
        self._on_change = on_change
        self.collection = Collection(
            client=api,
            path=path,
            kind=kind,
            read=lambda obj: obj if keeps(obj) else None,
            replace=self._replace,
            put=lambda obj: self._set({**self._without(obj), _key(obj): obj}),
            drop=lambda obj: self._set(self._without(obj)),
            query={"fieldSelector": fields} if fields else {},
            limit=None,
        )

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*."""
        trouble = f"no {self.collection.kind}s from the API server"
        Follower(self.collection, trouble=trouble).run(stop)

    def _replace(self, listed: Iterable[Json]) -> None:
        self._set({_key(each): each for each in listed})

    def _without(self, obj: Json) -> Mapping[Key, Json]:
        return {key: each for key, each in self.objects.items() if key != _key(obj)}

    def _set(self, objects: Mapping[Key, Json]) -> None:
        self.objects = objects
        self.synced.set()
        self._on_change()


def _key(obj: Json) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
