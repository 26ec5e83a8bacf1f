"""A cluster that is read once, or followed: lists and watches kept in a :class:`ClusterState`."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common.apiserver.client import Json, object_path
from common.apiserver.errors import Gone, Rejected
from common.apiserver.follower import Follower
from view.cluster.collections import ALL, NODES, PODS, Api, Followed, Kind, Progress
from view.model.reports import ClusterReport, FitReport, Gap, PodStory, Stage
from view.model.state import ClusterState

_FORBIDDEN = 403


class LiveCluster:
    """The cluster as one account may see it. Safe to share between threads."""

    def __init__(
        self,
        api: Api,
        state: ClusterState,
        *,
        namespace: str,
        progress: Progress = lambda _what, _count: None,
        kinds: Sequence[Kind] = ALL,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            api: the client.
            state: takes in what is read; belongs to this object from now on.
            namespace: what is read where not all namespaces may be.
            progress: told of each page.
            kinds: what is read.
        """
        self._api = api
        self._state = state
        self._lock = threading.Lock()
        self._gaps: dict[Kind, Gap] = {}
        self._order = {kind: place for place, kind in enumerate(kinds)}
        self._changes = 0
        self._changed = threading.Condition(self._lock)
        self._collections = [
            Followed(api, kind, namespace, self._take, self._set_gap, progress) for kind in kinds
        ]

    def load(self) -> None:
        """Read everything once, the collections side by side.

        What may not be read is a gap of the report.

        Raises:
            Rejected: the API server says no, and not because of missing rights.
            Unavailable: no usable answer.
        """
        with ThreadPoolExecutor(len(self._collections)) as pool:
            for done in [pool.submit(_load, each) for each in self._collections]:
                done.result()

    def follow(self, stop: threading.Event) -> list[threading.Thread]:
        """Start to follow the cluster, each collection in a thread of its own.

        Args:
            stop: set it, then close the client, to end the threads.
        """
        threads = [
            threading.Thread(
                target=Follower(each, trouble=f"no {each.kind.what} from the API server").run,
                args=(stop,),
                name=each.kind.what,
                daemon=True,
            )
            for each in self._collections
        ]
        for thread in threads:
            thread.start()
        return threads

    @property
    def missing(self) -> tuple[str, ...]:
        """What nothing can be said without, and was not read yet: nodes, pods."""
        needed = [each for each in self._collections if each.kind in (NODES, PODS)]
        return tuple(each.kind.what for each in needed if not each.listed)

    @property
    def version(self) -> int:
        """How many changes have come in."""
        with self._lock:
            return self._changes

    def wait_for_change(self, version: int, timeout: float) -> int:
        """Wait until there are more changes than *version*, or for *timeout* seconds.

        Returns:
            How many changes have come in by then.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._changes > version, timeout)
            return self._changes

    def report(self, stages: Iterable[Stage] = Stage) -> ClusterReport:
        """Return the cluster as it is now, with the pods in some stages."""
        with self._lock:
            return self._state.report(stages)

    def explain(self, namespace: str, name: str) -> PodStory | None:
        """Return one pod's way; ``None`` where no such pod asks for GPUs."""
        with self._lock:
            return self._state.explain(namespace, name)

    def fit(self, manifest: Mapping[str, Any]) -> FitReport:
        """Return whether and where a pod would fit that is not created yet.

        Raises:
            InvalidManifest: it is no pod and no workload, or asks for no GPU.
        """
        with self._lock:
            return self._state.fit(manifest)

    def load_events_of(self, namespace: str, name: str) -> None:
        """Read all Events of one pod, those of scheduler and kubelet too.

        Raises:
            Rejected: the API server says no, and not because of missing rights.
            Unavailable: no usable answer.
        """
        selector = f"involvedObject.kind=Pod,involvedObject.name={name}"
        kind = Kind("events", selector)
        path = object_path("events", namespace)
        try:
            events, _, _ = self._api.list(path, {"fieldSelector": selector})
        except Rejected as error:
            if error.status != _FORBIDDEN:
                raise
            self._set_gap(kind, Gap("events", "", str(error)))
            return
        for each in events:
            self._take(kind, "PUT", each)

    def _take(self, kind: Kind, verb: str, obj: Json) -> None:
        with self._changed:
            _APPLY[kind.what, verb](self._state, obj)
            self._changes += 1
            self._changed.notify_all()

    def _set_gap(self, kind: Kind, gap: Gap | None) -> None:
        with self._changed:
            if gap is None:
                self._gaps.pop(kind, None)
            else:
                self._gaps[kind] = gap
            # The collections are read side by side: any may be refused first.
            kinds = sorted(self._gaps, key=lambda each: self._order.get(each, len(self._order)))
            self._state.set_gaps(dict.fromkeys(self._gaps[each] for each in kinds))
            self._changes += 1
            self._changed.notify_all()


def _load(collection: Followed) -> None:
    try:
        try:
            collection.list()
        except Gone:  # its pages took too long; by now it is known how many there are
            collection.list()
    except Rejected as error:
        if error.status != _FORBIDDEN:
            raise


_APPLY: Mapping[tuple[str, str], Callable[[ClusterState, Json], None]] = {
    (NODES.what, "PUT"): ClusterState.put_node,
    (NODES.what, "DROP"): lambda state, obj: state.drop_node(obj["metadata"]["name"]),
    (PODS.what, "PUT"): ClusterState.put_pod,
    (PODS.what, "DROP"): lambda state, obj: state.drop_pod(obj["metadata"].get("uid", "")),
    ("events", "PUT"): ClusterState.put_event,
    ("events", "DROP"): ClusterState.drop_event,
}
