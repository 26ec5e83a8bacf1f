"""The pods of this node: a cache that a watch updates, and single requests on a miss."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from agent.errors import Unavailable
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from common.apiserver.follower import Collection, Follower, skipping_unreadable
from common.backoff import Jitter, by_chance
from contract.names import Names
from placement.pods import Key, PodInfo, read_pod

log = logging.getLogger(__name__)

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
        api: Api,
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
        self.collection = Collection(
            client=api,
            path="/api/v1/pods",
            kind="pod",
            read=self._parse,
            replace=self._replace,
            put=self._put,
            drop=self._forget,
            query={"fieldSelector": f"spec.nodeName={node}"},
            limit=None,
        )

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
        if obj is None or (obj.get("spec") or {}).get("nodeName") != self._node:
            return None
        return self._remember(self._parse(obj), alone=True)

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and add those that it has not reported yet.

        No pod is removed: the watch reports deletions.

        Raises:
            Unavailable: no response in time.
        """
        try:
            query = {**self.collection.query, "resourceVersion": "0"}
            items, _, _ = self._api.list(self.collection.path, query, within)
        except (Gone, Rejected) as error:
            raise Unavailable(f"list of pods: {error}") from error
        known = {info.id.uid for info in self._pods}
        for item in items:
            if item["metadata"].get("uid", "") not in known:
                self._remember(self._parse(item))

    def run(self, stop: threading.Event) -> None:
        """List, then watch, until *stop*; list again whenever the watch cannot continue."""
        trouble = "no pods from the API server"
        Follower(self.collection, trouble=trouble, clock=self._clock, jitter=self._jitter).run(stop)

    def _replace(self, listed: Iterable[PodInfo]) -> None:
        """Take the pods of a new list, and remove deleted ones."""
        fresh = {info.id.uid: info for info in listed}
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

    def _put(self, info: PodInfo) -> None:
        """Take a pod that the watch shows."""
        self._remember(info, watched=True)
        with self._lock:
            uids = self._watched_uids.setdefault(info.id.key, [])
            if info.id.uid not in uids:
                uids.append(info.id.uid)
                uids[:] = uids if len(uids) <= _MOST_OF_NAME else ["", *uids[2:]]
            while len(self._watched_uids) > _MOST_DELETED:
                self._watched_uids.popitem(last=False)

    def _remember(self, info: PodInfo, *, alone: bool = False, watched: bool = False) -> PodInfo:
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
