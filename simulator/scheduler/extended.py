"""A scheduler with extenders: one decision at a time, bindings beside each other.

What is known is changed by one thread alone, which takes what has happened from an inbox between
two decisions. So an event that comes while a pod is being decided on is seen once that pod is
back in the queue, as kube-scheduler's events in flight are.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from random import Random

from simulator.client import ApiClient, ApiError, Json
from simulator.scheduler.binding import post_binding
from simulator.scheduler.cache import Cache
from simulator.scheduler.configuration import SchedulerSettings
from simulator.scheduler.cycle import Cycle, NoNodesAvailable, Unschedulable
from simulator.scheduler.endpoint import ExtenderError
from simulator.scheduler.events import (
    NODE_ADD,
    NODE_DELETE,
    POD_ADD,
    POD_DELETE,
    node_events,
    pod_events,
)
from simulator.scheduler.extender import Extender, in_order
from simulator.scheduler.fit import is_terminal, node_of, waits
from simulator.scheduler.queue import QueuedPod, SchedulingQueue
from simulator.scheduler.reflector import Reflector

_PODS = "/api/v1/pods"
_NODES = "/api/v1/nodes"
_JOIN_S = 15.0
_log = logging.getLogger(__name__)


class ExtendedScheduler:
    """Binds pods as kube-scheduler does, extenders included.

    Args:
        client: the API server.
        settings: of the configuration.
        seed: of the choice among equal nodes and of the delays.
        workers: how many bindings are under way at once.
        max_delay: seconds, the longest delay before a binding.
        clock: gives seconds; waits end at whole ones.

    Raises:
        ValueError: the settings of an extender cannot be used.
    """

    def __init__(  # noqa: PLR0913 -- each has a default
        self,
        client: ApiClient,
        settings: SchedulerSettings,
        *,
        seed: int = 0,
        workers: int = 8,
        max_delay: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._random = Random(seed)  # noqa: S311 - a simulation is to be repeatable
        self._workers = workers
        self._max_delay = max_delay
        self._extenders = in_order(settings.extenders)
        self._cycle = Cycle(settings, self._extenders, self._random)
        self._cache = Cache()
        self._queue = SchedulingQueue(
            clock,
            initial_backoff_s=settings.initial_backoff_s,
            max_backoff_s=settings.max_backoff_s,
        )
        self._unsynced = {_PODS, _NODES}
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin; returns at once."""
        pods = self._reflector(_PODS, self._all_pods, self._pod)
        nodes = self._reflector(_NODES, self._all_nodes, self._node)
        self._threads = [
            threading.Thread(target=pods.run, args=(self._stop,), name="scheduler-pods"),
            threading.Thread(target=nodes.run, args=(self._stop,), name="scheduler-nodes"),
            threading.Thread(target=self._schedule, name="scheduler"),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def stop(self) -> None:
        """End; returns when no binding is under way any more."""
        self._stop.set()
        self._inbox.put(lambda: None)
        for thread in self._threads:
            thread.join(_JOIN_S)
        for extender in self._extenders:
            extender.close()

    def _reflector(
        self,
        path: str,
        replace: Callable[[Iterable[Json]], None],
        change: Callable[[str, Json], None],
    ) -> Reflector:
        def listed(found: Iterable[Json]) -> None:
            self._inbox.put(lambda: replace(found))

        def happened(kind: str, obj: Json) -> None:
            self._inbox.put(lambda: change(kind, obj))

        return Reflector(self._client, path, on_list=listed, on_event=happened)

    def _schedule(self) -> None:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="binder") as binders:
            while not self._stop.is_set():
                self._take_in(self._queue.seconds_to_next())
                queued = None if self._unsynced else self._queue.pop()
                if queued is not None and waits(queued.pod):
                    self._decide(queued, binders)

    def _take_in(self, within: float | None) -> None:
        """Apply all that has happened; wait for something where there is nothing to decide."""
        wait: float | None = None if self._unsynced else within
        try:
            while not self._stop.is_set():
                self._inbox.get(timeout=wait)() if wait != 0.0 else self._inbox.get_nowait()()
                wait = 0.0
        except Empty:
            return

    def _decide(self, queued: QueuedPod, binders: ThreadPoolExecutor) -> None:
        try:
            choice = self._cycle.choose(queued.pod, self._cache.snapshot())
        except Unschedulable as error:
            self._failed(queued, "Unschedulable", str(error), error.plugins)
        except NoNodesAvailable as error:
            self._failed(queued, "Unschedulable", str(error), frozenset())
        except ExtenderError as error:
            self._failed(queued, "SchedulerError", str(error), frozenset())
        else:
            self._cache.assume(queued.uid, choice.node)
            delay = self._random.uniform(0, self._max_delay)
            binders.submit(self._bind, queued, choice.node, delay)

    def _bind(self, queued: QueuedPod, node: str, delay: float) -> None:
        """Bind a pod, in a thread of its own."""
        if self._stop.wait(delay):
            return
        try:
            binder = self._binder(queued.pod)
            if binder is not None:
                try:
                    binder.bind(queued.pod, node)
                except ExtenderError as error:
                    if not binder.settings.ignorable:
                        raise
                    _log.info(
                        "skipping an extender",
                        extra={"url": binder.settings.url_prefix, "reason": str(error)},
                    )
                    binder = None
            if binder is None:
                post_binding(self._client, queued.pod, node)
        except (ApiError, ExtenderError) as error:
            said = str(error)
            self._inbox.put(lambda: self._not_bound(queued, said))

    def _binder(self, pod: Json) -> Extender | None:
        """Return the extender that binds *pod*; at most one extender can bind."""
        for extender in self._extenders:
            if extender.settings.bind_verb and extender.is_interested(pod):
                return extender
        return None

    def _not_bound(self, queued: QueuedPod, error: str) -> None:
        if self._cache.forget(queued.uid):
            self._queue.move(POD_DELETE)
        pod = self._cache.pods.get(queued.uid)
        # An extender may have bound the pod though its answer was lost.
        if pod is not None and not node_of(pod):
            queued.pod = pod
            self._failed(queued, "SchedulerError", error, frozenset())

    def _failed(
        self, queued: QueuedPod, reason: str, message: str, rejected_by: frozenset[str]
    ) -> None:
        self._queue.put_back(queued, rejected_by)
        pod = queued.pod
        said = {"status": "False", "reason": reason, "message": message}
        found = (pod.get("status") or {}).get("conditions") or ()
        if any(said.items() <= each.items() for each in found):
            return
        others = [each for each in found if each.get("type") != "PodScheduled"]
        patch = {"status": {"conditions": [*others, {"type": "PodScheduled", **said}]}}
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        try:
            self._client.patch(path, {"metadata": {"uid": metadata["uid"]}, **patch})
        except ApiError as error:
            _log.info("no condition written", extra={"pod": metadata["name"], "reason": str(error)})

    def _all_nodes(self, nodes: Iterable[Json]) -> None:
        found = {each["metadata"]["name"]: each for each in nodes}
        for name in self._cache.nodes.keys() - found.keys():
            self._node("DELETED", self._cache.nodes[name])
        for each in found.values():
            self._node("ADDED", each)
        self._unsynced.discard(_NODES)

    def _node(self, kind: str, node: Json) -> None:
        name = node["metadata"]["name"]
        old = self._cache.nodes.pop(name, None)
        if kind == "DELETED":
            self._queue.move(NODE_DELETE)
            return
        self._cache.nodes[name] = node
        for event in [NODE_ADD] if old is None else node_events(old, node):
            self._queue.move(event)

    def _all_pods(self, pods: Iterable[Json]) -> None:
        found = {each["metadata"]["uid"]: each for each in pods}
        for uid in self._cache.pods.keys() - found.keys():
            self._pod("DELETED", self._cache.pods[uid])
        for each in found.values():
            self._pod("ADDED", each)
        self._unsynced.discard(_PODS)

    def _pod(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        old = self._cache.pods.get(uid)
        if kind == "DELETED" or is_terminal(pod):
            held = old is not None and (node_of(old) or self._cache.is_assumed(uid))
            self._cache.drop_pod(uid)
            self._queue.discard(uid)
            if held:
                self._queue.move(POD_DELETE)
            return
        self._cache.set_pod(uid, pod)
        if node_of(pod):
            self._queue.discard(uid)
            known = old is not None and node_of(old)
            for event in pod_events(old, pod) if old and known else [POD_ADD]:
                self._queue.move(event)
        elif self._is_ours(pod):
            self._waiting(old, pod)

    def _waiting(self, old: Json | None, pod: Json) -> None:
        """Take in a new version of a pod without a node."""
        uid = pod["metadata"]["uid"]
        if self._cache.is_assumed(uid):
            # Its binding is under way, and is going to fail where it is being deleted.
            if pod["metadata"].get("deletionTimestamp") and self._cache.forget(uid):
                self._queue.move(POD_DELETE)
        elif uid in self._queue:
            self._queue.update(pod, pod_events(old or pod, pod))
        elif waits(pod):
            self._queue.add(pod)

    def _is_ours(self, pod: Json) -> bool:
        return (pod["spec"].get("schedulerName") or "default-scheduler") in self._settings.names
