"""The pods of this node: a cache that a watch keeps up, and single look-ups on a miss."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.apiserver.follower import Follower, passing_over
from common.backoff import Jitter, by_chance
from contract.names import Names
from placement.pods import Key, PodInfo, read_pod

log = logging.getLogger(__name__)


class PodApi(Protocol):
    """The part of the API that pods come from."""

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:
        """List the node's pods, with the resource version to watch from."""

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream their changes."""

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod."""


# UIDs that the watch has told to be gone, the newest so many: an answer that was on its way
# meanwhile must not bring such a pod back.
_MOST_GONE = 1024
_MOST_OF_NAME = 8
# After a list, pods of which the watch tells nothing may still be on the node for so long: they
# were deleted by force before, and the kubelet has not come to that.
_GAP_SECONDS = 5.0


class PodCache:
    """Keeps a :class:`PodInfo` of every pod on one node.

    :meth:`run` belongs to one thread; everything else may be called from any.
    """

    def __init__(
        self,
        *,
        api: PodApi,
        node: str,
        names: Names,
        clock: Callable[[], float] = time.monotonic,
        jitter: Jitter = by_chance,
    ) -> None:
        """Start empty; *node* is the node's name."""
        self._api = api
        self._node = node
        self._names = names
        self._on_change: Callable[[PodInfo], None] = lambda _view: None
        self._clock = clock
        self._jitter = jitter
        self._lock = threading.Lock()
        self._views: dict[str, PodInfo] = {}
        self._tuple: tuple[PodInfo, ...] = ()
        # UIDs whose names the API has shown to belong to others, until the watch says so too.
        self._replaced: set[str] = set()
        self._gone: OrderedDict[str, None] = OrderedDict()
        # UIDs of each name that the watch has told of since the last list, and when that was.
        self._told: OrderedDict[Key, list[str]] = OrderedDict()
        self._listed_at = 0.0
        self.synced = threading.Event()
        """Set once the first list has been read."""

    def subscribe(self, on_change: Callable[[PodInfo], None]) -> None:
        """Set *on_change*: called, without a lock, for every new or changed pod."""
        self._on_change = on_change

    def is_synced(self) -> bool:
        """Return whether the first list has been read."""
        return self.synced.is_set()

    def pods(self) -> Sequence[PodInfo]:
        """Return all known pods; the same object for as long as nothing has changed."""
        return self._tuple

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs of the pods of a name, as they came, gone ones too, by the watch.

        An empty one stands for others that there may be: the watch tells of every pod, in order,
        but not of what there was before it began.
        """
        with self._lock:
            gap = self._clock() < self._listed_at + _GAP_SECONDS
            return [*self._told.get(key, ()), *([""] if gap else [])]

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        """Ask the API for one pod, within so many seconds, and remember it.

        A name belongs to one pod at a time: others of it that are remembered are gone, which
        the watch will tell later.

        Raises:
            Unavailable: no answer in time.
        """
        obj = self._api.get_pod(namespace, name, within)
        here = obj is not None and (obj.get("spec") or {}).get("nodeName") == self._node
        return self._remember(obj, alone=True) if obj is not None and here else None

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and learn those that it has not told of.

        Nothing is forgotten: which pods are gone, the watch tells.

        Raises:
            Unavailable: no answer in time.
        """
        try:
            items, _ = self._api.list_pods(self._node, within)
        except (Gone, Rejected) as error:
            raise Unavailable(f"list of pods: {error}") from error
        known = {view.id.uid for view in self._tuple}
        for item in items:
            if item["metadata"].get("uid", "") not in known:
                self._remember(item)

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*; list again whenever the watch cannot go on."""
        trouble = "no pods from the API server"
        Follower(self, trouble=trouble, clock=self._clock, jitter=self._jitter).run(stop)

    def list(self) -> str:
        """List the pods, and forget those that are gone; for :class:`Follower`."""
        items, version = self._api.list_pods(self._node)
        fresh: dict[str, PodInfo] = {}
        for item in items:
            with passing_over("pod", item):
                view = self._parse(item)
                fresh[view.id.uid] = view
        with self._lock:
            changed = [view for uid, view in fresh.items() if self._views.get(uid) != view]
            self._views = fresh
            self._replaced.clear()
            self._tuple = tuple(fresh.values())
            self._listed_at = self._clock()
            self._told.clear()
            for view in fresh.values():  # others came before it, perhaps
                self._told.setdefault(view.id.key, [""]).append(view.id.uid)
        self.synced.set()
        for view in changed:
            pod = {"name": view.id.name, "namespace": view.id.namespace}
            with passing_over("pod", {"metadata": pod}):
                self._on_change(view)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream what happens to the pods; for :class:`Follower`."""
        return self._api.watch_pods(self._node, version)

    def apply(self, kind: str, obj: Json) -> None:
        """Take one event in; for :class:`Follower`."""
        if kind == "DELETED":
            self._forget(obj)
        else:
            with passing_over("pod", obj):
                view = self._remember(obj)
                with self._lock:
                    told = self._told.setdefault(view.id.key, [])
                    if view.id.uid not in told:
                        told.append(view.id.uid)
                        told[:] = told if len(told) <= _MOST_OF_NAME else ["", *told[2:]]
                    while len(self._told) > _MOST_GONE:
                        self._told.popitem(last=False)

    def _remember(self, obj: Json, *, alone: bool = False) -> PodInfo:
        view = self._parse(obj)
        with self._lock:
            uid = view.id.uid
            if uid in self._replaced or uid in self._gone or self._views.get(uid) == view:
                return view
            for other in self._tuple if alone else ():
                if other.id.key == view.id.key and other.id.uid != uid:
                    self._replaced.add(other.id.uid)
                    del self._views[other.id.uid]
            self._views[uid] = view
            self._tuple = tuple(self._views.values())
        self._on_change(view)
        return view

    def _forget(self, obj: Json) -> None:
        uid = obj["metadata"].get("uid", "")
        with self._lock:
            self._replaced.discard(uid)
            self._gone[uid] = None
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)
            self._views.pop(uid, None)
            self._tuple = tuple(self._views.values())

    def _parse(self, obj: Json) -> PodInfo:
        view = read_pod(obj, self._names)
        for fault in view.faults:
            log.warning("annotation ignored", extra={"pod": str(view.id), "reason": fault})
        return view
