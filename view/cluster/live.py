"""A cluster that is read once, or followed: lists and watches kept in a :class:`ClusterState`."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from common.apiserver.client import Client, Json, quoted
from common.apiserver.errors import Gone, Rejected
from common.apiserver.follower import Follower
from common.errors import Unavailable
from view.cluster.collections import (
    ALL,
    FORBIDDEN,
    NODES,
    PODS,
    FollowedCollection,
    Progress,
    ResourceKind,
    events_of,
    shortly,
)
from view.model.explanation import FitReport, PodExplanation
from view.model.reports import ClusterReport, Freshness, Gap, Stage
from view.model.state import ClusterState

STALE_SECONDS = 10.0
"""What is older than this may not be so any more, and is said to be old."""

_HEARTBEAT_SECONDS = 4.0
"""From one question whether the API server is there to the next, and for its answer."""

_ANY_PATH = "/version"  # anybody may ask for it
_OBJECT_SECONDS = 10.0


class LiveCluster:
    """The cluster as one account may see it. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- what it reads and how, by keyword
        self,
        api: Client,
        state: ClusterState,
        *,
        namespace: str,
        progress: Progress = lambda _what, _count: None,
        kinds: Sequence[ResourceKind] = ALL,
        within: float | None = None,
    ) -> None:
        """Prepare; nothing is asked yet.

        *state* belongs to this object from now on; *namespace* is read where not all may be, and a
        page of a list takes no longer than *within* seconds.
        """
        self._api = api
        self._state = state
        self._lock = threading.Lock()
        # In this order: the collections are read side by side, and any may be refused first.
        self._gaps: dict[ResourceKind, Gap | None] = dict.fromkeys(kinds)
        self._changes = 0
        self._changed = threading.Condition(self._lock)
        self._heard = 0.0
        self._trouble = ""
        self._chosen: set[tuple[str, str]] | None = None
        self._make = partial(
            FollowedCollection,
            api,
            namespace=namespace,
            sink=self._take,
            on_gap=self._set_gap,
            own_nodes=self._own_nodes,
            within=within,
        )
        self._collections = [self._make(kind, progress=progress) for kind in kinds]
        if any(kind.chosen for kind in kinds):
            self._chosen = set()

    def load(self) -> None:
        """Read everything once, the collections side by side; a watch goes on from there.

        What may not be read is a gap of the report.

        Raises:
            Rejected: the API server says no, and not because of missing rights.
            Unavailable: no usable answer.
        """
        began = time.time()
        with ThreadPoolExecutor(len(self._collections)) as pool:
            for done in [pool.submit(_load, each) for each in self._collections]:
                done.result()
        for each in self._collections:
            if each.kind == NODES and not each.listed:
                _load(each)  # by now it is known which nodes pods are on
        self._heard = began

    def follow(self, stop: threading.Event) -> list[threading.Thread]:
        """Start to follow the cluster, each collection in a thread of its own."""
        threads = [
            threading.Thread(
                target=Follower(each, trouble=f"no {each.kind.what} from the API server").run,
                args=(stop,),
                name=each.kind.what,
                daemon=True,
            )
            for each in self._collections
        ]
        threads.append(threading.Thread(target=self._listen, args=(stop,), daemon=True))
        for thread in threads:
            thread.start()
        return threads

    def _listen(self, stop: threading.Event) -> None:
        """Ask the API server now and then whether it is there: a watch may be silent for long."""
        while not stop.is_set():
            began = time.time()
            try:
                self._api.read_text(_ANY_PATH, timeout=_HEARTBEAT_SECONDS)
            except (Rejected, Gone):
                pass  # it is there
            except Unavailable as error:
                self._trouble, began = shortly(error), 0.0
            self._heard = max(self._heard, began)
            stop.wait(_HEARTBEAT_SECONDS)

    @property
    def freshness(self) -> Freshness:
        """How old what is known is."""
        found = [(self._heard, self._trouble)]
        found += [each.lost for each in self._collections if each.lost and each.listed]
        at, why = min(found)
        if not at or time.time() - at <= STALE_SECONDS:
            return Freshness(at)
        return Freshness(at, f"the API server is not heard ({why or 'no answer in time'})")

    @property
    def missing(self) -> tuple[str, ...]:
        """What nothing can be said without, and is being read: nodes, pods."""
        needed = [each for each in self._collections if each.kind in (NODES, PODS)]
        return tuple(
            each.kind.what for each in needed if not each.listed and not self._gaps[each.kind]
        )

    def chose(self, namespace: str, name: str) -> bool:
        """Return whether the user's selectors match an object; all where there are none."""
        with self._lock:
            return self._chosen is None or (namespace, name) in self._chosen

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

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Return one pod's way; ``None`` where no such pod asks for GPUs."""
        with self._lock:
            return self._state.explain(namespace, name)

    def fit(self, *manifests: Mapping[str, Any]) -> tuple[FitReport, ...]:
        """Return whether and where pods would fit together that are not created yet.

        Raises:
            InvalidManifest: one is no pod and no workload, or asks for no GPU.
        """
        with self._lock:
            return self._state.fit(*manifests)

    def load_events_of(self, namespace: str, name: str) -> None:
        """Read all Events of one pod, those of scheduler and kubelet too."""
        _load(self._make(events_of(namespace, name)))

    def load_object(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """Read one object, which may be allowed where a list is not.

        Raises:
            Rejected: it does not exist, or may not be read either.
            Unavailable: no usable answer.
        """
        scope = f"/namespaces/{quoted(namespace)}" if namespace else ""
        path = f"/api/v1{scope}/{kind.what}/{quoted(name)}"
        self._take(kind, "PUT", self._api.call("GET", path, timeout=_OBJECT_SECONDS))

    def _own_nodes(self) -> list[str]:
        with self._lock:
            return self._state.nodes_of_pods()

    def _take(self, kind: ResourceKind, verb: str, obj: Json) -> None:
        self._heard = time.time()
        with self._changed:
            if kind.chosen and self._chosen is not None:
                key = (obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
                (self._chosen.add if verb == "PUT" else self._chosen.discard)(key)
            else:
                _APPLY[kind.what, verb](self._state, obj)
            self._changes += 1
            self._changed.notify_all()

    def _set_gap(self, kind: ResourceKind, gap: Gap | None) -> None:
        with self._changed:
            if self._gaps.get(kind) != gap:
                self._gaps[kind] = gap
                self._state.set_gaps(dict.fromkeys(filter(None, self._gaps.values())))
                self._changes += 1
                self._changed.notify_all()


def _load(collection: FollowedCollection) -> None:
    try:
        try:
            collection.load()
        except Gone:  # its pages took too long; by now it is known how many there are
            collection.load()
    except Rejected as error:
        if error.status != FORBIDDEN:
            raise


_APPLY: Mapping[tuple[str, str], Callable[[ClusterState, Json], None]] = {
    (NODES.what, "PUT"): ClusterState.put_node,
    (NODES.what, "DROP"): lambda state, obj: state.drop_node(obj["metadata"]["name"]),
    (PODS.what, "PUT"): ClusterState.put_pod,
    (PODS.what, "DROP"): lambda state, obj: state.drop_pod(obj["metadata"].get("uid", "")),
    ("events", "PUT"): ClusterState.put_event,
    ("events", "DROP"): ClusterState.drop_event,
}
