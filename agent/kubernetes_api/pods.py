"""The pods of this node: a cache that a watch updates, and single requests on a miss."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.apiserver.follower import Follower, skipping_unreadable
from common.backoff import Jitter, by_chance
from contract.names import Names
from placement.pods import Key, PodInfo, read_pod

log = logging.getLogger(__name__)


class PodApi(Protocol):
    """The part of the API by which pods are read."""

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:
        """List the node's pods, with the resource version to watch from."""

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Stream the changes of the node's pods."""

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod."""


# So many of the newest deleted UIDs are remembered: a response that was on its way during the
# deletion must not bring a pod back.
_MOST_DELETED = 1024
_MOST_OF_NAME = 8
# For so long after a list, pods that were force-deleted before it may still be on the node: the
# kubelet has not removed them yet.
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
        self._infos: dict[str, PodInfo] = {}
        self._pods: tuple[PodInfo, ...] = ()
        # UIDs whose names belong to other pods by now, until the watch reports the deletion.
        self._replaced: set[str] = set()
        self._deleted: OrderedDict[str, None] = OrderedDict()
        # UIDs of each name that the watch has reported since the last list, and the list's time.
        self._watched_uids: OrderedDict[Key, list[str]] = OrderedDict()
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
        """Return all known pods; the same object as long as nothing has changed."""
        return self._pods

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs that pods with a name had, in the watch's order, deleted ones included.

        An empty UID stands for unknown earlier pods: the watch reports every pod, in order, but
        none that was deleted before it began.
        """
        with self._lock:
            gap = self._clock() < self._listed_at + _GAP_SECONDS
            return [*self._watched_uids.get(key, ()), *([""] if gap else [])]

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        """Get one pod from the API *within* so many seconds, and add it to the cache.

        A name belongs to one pod at a time, so other cached pods with that name are deleted, which
        the watch will report later.

        Raises:
            Unavailable: no response in time.
        """
        obj = self._api.get_pod(namespace, name, within)
        on_this_node = obj is not None and (obj.get("spec") or {}).get("nodeName") == self._node
        return self._remember(obj, alone=True) if obj is not None and on_this_node else None

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and add those that it has not reported yet.

        No pod is removed: the watch reports deletions.

        Raises:
            Unavailable: no response in time.
        """
        try:
            items, _ = self._api.list_pods(self._node, within)
        except (Gone, Rejected) as error:
            raise Unavailable(f"list of pods: {error}") from error
        known = {info.id.uid for info in self._pods}
        for item in items:
            if item["metadata"].get("uid", "") not in known:
                self._remember(item)

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*; list again whenever the watch cannot continue."""
        trouble = "no pods from the API server"
        Follower(self, trouble=trouble, clock=self._clock, jitter=self._jitter).run(stop)

    def list(self) -> str:
        """List the pods, and remove deleted ones from the cache; for :class:`Follower`."""
        items, version = self._api.list_pods(self._node)
        fresh: dict[str, PodInfo] = {}
        for item in items:
            with skipping_unreadable("pod", item):
                info = self._parse(item)
                fresh[info.id.uid] = info
        with self._lock:
            changed = [info for uid, info in fresh.items() if self._infos.get(uid) != info]
            self._infos = fresh
            self._replaced.clear()
            self._pods = tuple(fresh.values())
            self._listed_at = self._clock()
            self._watched_uids.clear()
            for info in fresh.values():  # there may have been earlier pods with that name
                self._watched_uids.setdefault(info.id.key, [""]).append(info.id.uid)
        self.synced.set()
        for info in changed:
            pod = {"name": info.id.name, "namespace": info.id.namespace}
            with skipping_unreadable("pod", {"metadata": pod}):
                self._on_change(info)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of the pods; for :class:`Follower`."""
        return self._api.watch_pods(self._node, version)

    def apply(self, kind: str, obj: Json) -> None:
        """Apply one event; for :class:`Follower`."""
        if kind == "DELETED":
            self._forget(obj)
        else:
            with skipping_unreadable("pod", obj):
                info = self._remember(obj, watched=True)
                with self._lock:
                    uids = self._watched_uids.setdefault(info.id.key, [])
                    if info.id.uid not in uids:
                        uids.append(info.id.uid)
                        uids[:] = uids if len(uids) <= _MOST_OF_NAME else ["", *uids[2:]]
                    while len(self._watched_uids) > _MOST_DELETED:
                        self._watched_uids.popitem(last=False)

    def _remember(self, obj: Json, *, alone: bool = False, watched: bool = False) -> PodInfo:
        info = self._parse(obj)
        with self._lock:
            uid = info.id.uid
            if watched and self._has_successor(info):
                self._replaced.add(uid)
            if uid in self._replaced or uid in self._deleted:
                return info
            others = [
                other.id.uid
                for other in (self._pods if alone else ())
                if other.id.key == info.id.key and other.id.uid != uid
            ]
            if not others and self._infos.get(uid) == info:
                return info
            for other in others:
                self._replaced.add(other)
                del self._infos[other]
            self._infos[uid] = info
            self._pods = tuple(self._infos.values())
        self._on_change(info)
        return info

    def _has_successor(self, info: PodInfo) -> bool:
        """Return whether another pod of its name was read that the watch has yet to report."""
        reported = self._watched_uids.get(info.id.key, ())
        return any(
            other.id.key == info.id.key and other.id.uid not in {info.id.uid, *reported}
            for other in self._pods
        )

    def _forget(self, obj: Json) -> None:
        uid = obj["metadata"].get("uid", "")
        with self._lock:
            self._replaced.discard(uid)
            self._deleted[uid] = None
            if len(self._deleted) > _MOST_DELETED:
                self._deleted.popitem(last=False)
            self._infos.pop(uid, None)
            self._pods = tuple(self._infos.values())

    def _parse(self, obj: Json) -> PodInfo:
        info = read_pod(obj, self._names)
        for fault in info.faults:
            log.warning("annotation ignored", extra={"pod": str(info.id), "reason": fault})
        return info
