"""Reads or follows a cluster: lists and watches that update a :class:`ClusterState`."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import REQUEST_ERRORS, Gone, Rejected
from common.apiserver.follower import Follower
from common.errors import Unavailable
from contract.workloads import WORKLOADS
from view.cluster.collections import (
    ALL,
    FORBIDDEN,
    NODES,
    PODS,
    FollowedCollection,
    Progress,
    ResourceKind,
    events_of,
    short_reason,
)
from view.cluster.queues import read_queue
from view.cluster.timing import REAL_TIME, Timing
from view.model.claims import TemplateFacts
from view.model.event_facts import CONTROLLERS, SCALED, count_pods, missing_pods
from view.model.manifest_fit import FitReport
from view.model.pod_explanation import PodExplanation
from view.model.queues import QueueKey, QueueReport
from view.model.reports import ClusterReport, Freshness, Gap, Stage
from view.model.state import ClusterState

STALE_SECONDS = 10.0
"""Data older than this is reported as stale."""

_DENIED_SECONDS = 10.0
"""Interval in which workloads whose pods are denied are read, and timeout of one."""

_MOST_DENIED = 20
_ANY_PATH = "/version"  # every user may read it
_OBJECT_SECONDS = 10.0
_DRA = "/apis/resource.k8s.io/v1"


class LiveCluster:
    """The cluster as one user may read it. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        api: Client,
        state: ClusterState,
        *,
        namespace: str,
        progress: Progress = lambda _what, _count: None,
        kinds: Sequence[ResourceKind] = ALL,
        timing: Timing = REAL_TIME,
    ) -> None:
        """Prepare to read these collections; no request is sent yet.

        From now on only this instance may use *state*. If all namespaces may not be read,
        *namespace* is; *progress* is called while lists are read.
        """
        self._api = api
        self._state = state
        self._timing = timing
        self._lock = threading.Lock()
        # In this order, although the collections are read in parallel and may fail in any order.
        self._gaps: dict[ResourceKind, Gap | None] = dict.fromkeys(kinds)
        self._changes = 0
        self._changed = threading.Condition(self._lock)
        self._last_response = 0.0
        self._last_error = ""
        self._chosen: set[tuple[str, str]] | None = None
        self._make = partial(
            FollowedCollection,
            api,
            namespace=namespace,
            sink=self._apply,
            on_gap=self._set_gap,
            own_nodes=self._own_nodes,
            now=timing.now,
        )
        self._collections = [self._make(kind, progress=progress) for kind in kinds]
        if any(kind.chosen for kind in kinds):
            self._chosen = set()

    def load(self) -> None:
        """Read all collections once, in parallel; a watch continues from there.

        A collection that may not be read becomes a gap of the report.

        Raises:
            Rejected: the API server rejects a request, but not for missing permissions.
            Unavailable: no usable response.
        """
        began = self._timing.now()
        with ThreadPoolExecutor(len(self._collections)) as pool, self._api.interruptible():
            for done in [pool.submit(_load, each) for each in self._collections]:
                done.result()
        for each in self._collections:
            if each.of == NODES and not each.listed:
                _load(each)  # now the nodes of pods are known
        self._read_denied()
        self._read_left_over()
        self._last_response = began

    def follow(self, stop: threading.Event) -> list[threading.Thread]:
        """Follow the cluster, each collection in its own thread."""
        threads = [
            threading.Thread(
                target=Follower(each, trouble=f"no {each.of.what} from the API server").run,
                args=(stop,),
                name=each.of.what,
                daemon=True,
            )
            for each in self._collections
        ]
        threads += [
            threading.Thread(target=each, args=(stop,), daemon=True)
            for each in (self._check_connection, self._follow_denied)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _check_connection(self, stop: threading.Event) -> None:
        """Send requests to the API server now and then: a watch may be silent for long."""
        while not stop.is_set():
            began = self._timing.now()
            try:
                self._api.read_text(_ANY_PATH, timeout=self._timing.heartbeat)
            except (Rejected, Gone):
                pass  # it responds
            except Unavailable as error:
                self._last_error, began = short_reason(error), 0.0
            self._last_response = max(self._last_response, began)
            stop.wait(self._timing.heartbeat)

    def _follow_denied(self, stop: threading.Event) -> None:
        while not stop.wait(_DENIED_SECONDS):
            with suppress(Unavailable):
                self._read_denied()
                self._read_left_over()

    def _read_left_over(self) -> None:
        """Read the controllers of dead pods: perhaps they want no others, or have them.

        Pods of one that may not be read stay.
        """
        with self._lock:
            controllers = sorted(self._state.left_over())
        known = [each for each in controllers if each[1].partition("/")[0] in SCALED]
        for namespace, controller in known[:_MOST_DENIED]:
            kind, _, name = controller.partition("/")
            of = WORKLOADS[kind]
            path = object_path(of.resource, namespace, name, api=of.api)
            try:
                found = self._api.find(path, timeout=_DENIED_SECONDS)
            except (Rejected, Gone):
                continue
            wanted = None if found is None else count_pods(kind, found).wanted
            with self._changed:
                if wanted is not None and self._state.settle_pods(namespace, controller, wanted):
                    self._changes += 1
                    self._changed.notify_all()

    def _read_denied(self) -> None:
        """Read the workloads whose pods are denied: of one that is gone no Event tells.

        A workload that may not be read, or is of an unknown kind, is reported as long as its Event.
        """
        with self._lock:
            workloads = self._state.denied_workloads()
        denied = [(uid, each) for uid, each in workloads if each.kind in CONTROLLERS and uid]
        denied.sort(key=lambda each: each[1].at, reverse=True)
        for uid, workload in denied[:_MOST_DENIED]:
            of = WORKLOADS[workload.kind]
            path = object_path(of.resource, workload.namespace, workload.name, api=of.api)
            try:
                found = self._api.find(path, timeout=_DENIED_SECONDS)
            except (Rejected, Gone):
                continue
            counts = missing_pods(uid, workload.kind, found)
            if counts == (workload.wanted, (workload.wanted or 0) - (workload.missing or 0)):
                continue
            with self._changed:
                if counts is None:
                    self._state.settle_denials(uid, workload.at)
                else:
                    self._state.put_missing(uid, counts)
                self._changes += 1
                self._changed.notify_all()

    @property
    def freshness(self) -> Freshness:
        """Age of the data."""
        found = [(self._last_response, self._last_error)]
        found += [each.lost for each in self._collections if each.lost and each.listed]
        at, why = min(found)
        if not at or self._timing.now() - at <= STALE_SECONDS:
            return Freshness(at)
        return Freshness(at, f"the API server is unreachable ({why or 'no response in time'})")

    @property
    def missing(self) -> tuple[str, ...]:
        """Required collections that are still being read: nodes, pods."""
        needed = [each for each in self._collections if each.of in (NODES, PODS)]
        return tuple(each.of.what for each in needed if not each.listed and not self._gaps[each.of])

    def matches(self, namespace: str, name: str) -> bool:
        """Return whether the user's selectors match an object; true without selectors."""
        with self._lock:
            return self._chosen is None or (namespace, name) in self._chosen

    @property
    def version(self) -> int:
        """Number of changes so far."""
        with self._lock:
            return self._changes

    def wait_for_change(self, version: int, timeout: float) -> int:
        """Wait until there are more changes than *version*, or for *timeout* seconds.

        Returns:
            The number of changes by then.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._changes > version, timeout)
            return self._changes

    def report(self, stages: Iterable[Stage] = Stage) -> ClusterReport:
        """Return a report on the cluster, with the pods in these stages."""
        with self._lock:
            return self._state.report(stages)

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Explain one pod; ``None`` if no pod of this name requests GPUs."""
        with self._lock:
            return self._state.explain(namespace, name)

    def is_missing(self, node: str) -> bool:
        """Return whether a node does not exist; false if nodes cannot all be read."""
        with self._lock:
            return self._state.is_missing(node)

    def fit(self, *manifests: Mapping[str, Any]) -> tuple[FitReport, ...]:
        """Return whether and where the pods of manifests would fit, all together.

        Raises:
            InvalidManifest: one is not a pod or workload, or its pods request no GPU.
        """
        with self._lock:
            return self._state.fit(*manifests)

    def load_events_of(self, namespace: str, name: str) -> None:
        """Read all Events of one pod, also those of scheduler and kubelet."""
        _load(self._make(events_of(namespace, name)))

    def load_template_of(self, namespace: str, name: str) -> None:
        """Read whether the template of the claim exists that a pod waits for, if it waits for one.

        If it cannot be read, that is part of the pod's explanation.
        """
        with self._lock:
            template = self._state.awaited_template(namespace, name)
        if not template:
            return
        path = object_path("resourceclaimtemplates", namespace, template, api=_DRA)
        try:
            found = TemplateFacts(exists=self._api.find(path, timeout=_OBJECT_SECONDS) is not None)
        except REQUEST_ERRORS as error:
            found = TemplateFacts(exists=False, unread=str(error))
        with self._lock:
            self._state.put_template(namespace, name, found)

    def load_queue_of(self, namespace: str, name: str) -> None:
        """Read what Kueue has decided about a pod without a node, if it is in a queue.

        If it cannot be read, that is part of the pod's explanation.
        """
        with self._lock:
            key = self._state.awaited_queue(namespace, name)
        if key is None:
            return
        found = read_queue(self._api, namespace, key)
        with self._lock:
            self._state.put_queue(namespace, name, found)

    def report_queue(self, namespace: str, key: QueueKey) -> QueueReport | None:
        """Read what Kueue has decided about a Job; ``None`` without Kueue."""
        found = read_queue(self._api, namespace, key)
        with self._lock:
            return None if found is None else self._state.report_queue(found)

    def load_object(self, kind: ResourceKind, namespace: str, name: str) -> Json:
        """Read one object, which may be permitted when a list is not, and return it.

        Raises:
            Rejected: it does not exist, or may not be read either.
            Unavailable: no usable response.
        """
        scope = f"/namespaces/{quoted(namespace)}" if namespace else ""
        path = f"/api/v1{scope}/{kind.what}/{quoted(name)}"
        found = self._api.call("GET", path, timeout=_OBJECT_SECONDS)
        self._apply(kind, "PUT", found)
        return found

    def _own_nodes(self) -> list[str]:
        with self._lock:
            return self._state.nodes_of_pods()

    def _apply(self, kind: ResourceKind, verb: str, obj: Json) -> None:
        self._last_response = self._timing.now()
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
        except Gone:  # its pages took too long: try once more
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
