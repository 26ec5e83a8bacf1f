"""Choose nodes for pods by counts of extended resources and, if there is one, by an extender.

One thread chooses. Several threads bind, each after a random delay, so pods are not bound in the
order of their creation: a node agent must handle that. Until the API server confirms a binding,
it is assumed: its pod counts on the node. After any change, all pending pods are tried again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from simulator.client import ApiClient, ApiError, Json
from simulator.kubelet.pods import TERMINAL_PHASES, Pod, parse_pod, requests_of
from simulator.reflector import Reflector
from simulator.scheduler.configuration import SchedulerSettings
from simulator.scheduler.extender import ExtenderClient, ExtenderError
from simulator.scheduler.fit import reasons_against

_log = logging.getLogger(__name__)

_PODS = "/api/v1/pods"
_NODES = "/api/v1/nodes"
_RETRY_S = 1.0
_JOIN_S = 15.0

_Used = Mapping[str, Counter[str]]
"""Amounts that the pods of each node request, by node and extended resource."""


class NoNodeFits(Exception):
    """No node fits; the message counts the reasons as kube-scheduler does."""

    def __init__(self, nodes: int, reasons: Iterable[str]) -> None:
        counts = Counter(reasons)
        text = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
        super().__init__(f"0/{nodes} nodes are available:" + (f" {text}." if text else ""))


class Scheduler:
    """Binds pods that fit, and tries the others again.

    Args:
        client: calls the API server.
        settings: the names of the scheduler, and its extender.
        seed: seed of the choice among equal nodes and of the delays.
        workers: number of threads that bind.
        max_delay: longest delay before a binding, in seconds.

    Raises:
        ValueError: the settings of the extender cannot be used.
    """

    def __init__(
        self,
        client: ApiClient,
        settings: SchedulerSettings | None = None,
        *,
        seed: int = 0,
        workers: int = 8,
        max_delay: float = 0.05,
    ) -> None:
        settings = settings or SchedulerSettings()
        self._client = client
        self._names = settings.names
        self._extender = ExtenderClient(settings.extender) if settings.extender else None
        self._random = Random(seed)  # noqa: S311 - a simulation must be repeatable
        self._workers = workers
        self._max_delay = max_delay
        self._changed = threading.Condition()
        self._changes = 0
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Json] = {}
        self._not_listed = {_PODS, _NODES}
        self._assumed: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._stop = threading.Event()
        self._reflectors = (
            Reflector(client, _PODS, on_list=self._set_pods, on_event=self._apply_pod_event),
            Reflector(client, _NODES, on_list=self._set_nodes, on_event=self._apply_node_event),
        )
        loops = (self._schedule, *(each.run for each in self._reflectors))
        self._threads = [threading.Thread(target=each, daemon=True) for each in loops]

    def start(self) -> None:
        """Start the threads; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; returns when all bindings in progress have ended."""
        self._stop.set()
        for each in self._reflectors:
            each.stop()
        with self._changed:
            self._count_change()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def choose(self, pod: Pod, nodes: Sequence[Json], used: _Used) -> str:
        """Return the node for *pod*: one with the extender's best score, a random one of these.

        Raises:
            NoNodeFits: the pod fits no node.
            ExtenderError: the extender could not filter the nodes.
        """
        against = {_name(each): reasons_against(each, pod, used[_name(each)]) for each in nodes}
        fitting: Sequence[str] = [name for name, reasons in against.items() if not reasons]
        filtered: Mapping[str, str] = {}
        scores: Mapping[str, int] = {}
        if self._extender and fitting and self._extender.is_interested(pod):
            fitting, filtered = self._extender.filter(pod, fitting)
            if len(fitting) > 1:
                scores = self._scores(self._extender, pod, fitting)
        if not fitting:
            reasons = [reason for each in against.values() for reason in each]
            raise NoNodeFits(len(nodes), [*reasons, *filtered.values()])
        best = max(scores.get(name, 0) for name in fitting)
        return self._random.choice([name for name in fitting if scores.get(name, 0) == best])

    def _scores(
        self, extender: ExtenderClient, pod: Pod, nodes: Sequence[str]
    ) -> Mapping[str, int]:
        try:
            return extender.prioritize(pod, nodes)
        except ExtenderError as error:  # kube-scheduler too goes on without its scores
            _log.info("no scores from the extender", extra={"reason": str(error)})
            return {}

    def _schedule(self) -> None:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="binder") as binders:
            handled = -1
            while not self._stop.is_set():
                with self._changed:
                    if handled == self._changes:
                        self._changed.wait(self._until_retry())
                    handled = self._changes
                    nodes = [self._nodes[name] for name in sorted(self._nodes)]
                    pending, used = self._pending(), self._used()
                for pod in pending:
                    if self._stop.is_set():
                        return
                    self._decide(pod, nodes, used, binders)

    def _decide(
        self, pod: Pod, nodes: Sequence[Json], used: _Used, binders: ThreadPoolExecutor
    ) -> None:
        try:
            node = self.choose(pod, nodes, used)
        except NoNodeFits as error:
            self._set_condition(pod, "Unschedulable", str(error))
        except ExtenderError as error:
            self._retry_later(pod, str(error))
        else:
            with self._changed:
                self._assumed[pod.uid] = node
            used[node].update(requests_of(pod))
            binders.submit(self._bind, pod, node, self._random.uniform(0, self._max_delay))

    def _pending(self) -> list[Pod]:
        """Return the pods to schedule, the oldest first; none before the first lists arrived."""
        if self._not_listed:
            return []
        now = time.monotonic()
        # A pod whose retry is due is tried now. If it does not fit, only a change helps.
        self._not_before = {
            uid: due for uid, due in self._not_before.items() if due > now and uid in self._pods
        }
        return [
            pod
            for pod in sorted(
                self._pods.values(), key=lambda each: (each.created, each.full_name, each.uid)
            )
            if not _node_of(pod)
            and pod.uid not in self._assumed
            and pod.uid not in self._not_before
            and not pod.deleting
            and pod.phase not in TERMINAL_PHASES
            and pod.manifest["spec"].get("schedulerName", "default-scheduler") in self._names
        ]

    def _used(self) -> _Used:
        used = {name: Counter[str]() for name in self._nodes}
        for pod in self._pods.values():
            node = _node_of(pod) or self._assumed.get(pod.uid)
            if node in used and pod.phase not in TERMINAL_PHASES:
                used[node].update(requests_of(pod))
        return used

    def _until_retry(self) -> float | None:
        """Return the seconds until the next retry is due; ``None`` if none is planned."""
        if not self._not_before:
            return None
        return max(min(self._not_before.values()) - time.monotonic(), 0.0)

    def _bind(self, pod: Pod, node: str, delay: float) -> None:
        if self._stop.wait(delay):
            return
        try:
            if self._extender and self._extender.binds and self._extender.is_interested(pod):
                self._extender.bind(pod, node)
            else:
                self._client.create(f"{pod.path}/binding", _binding(pod, node))
        except (ApiError, ExtenderError) as error:
            self._retry_later(pod, str(error))

    def _retry_later(self, pod: Pod, message: str) -> None:
        """Report an error that may be temporary, forget the assumed binding and plan a retry."""
        with self._changed:
            current = self._pods.get(pod.uid)
        # It may be deleted by now, or bound by a call whose response was lost.
        if current is not None and not _node_of(current):
            self._set_condition(current, "SchedulerError", message)
        with self._changed:
            self._assumed.pop(pod.uid, None)
            self._not_before[pod.uid] = time.monotonic() + _RETRY_S
            self._count_change()

    def _set_condition(self, pod: Pod, reason: str, message: str) -> None:
        """Set the pod's condition ``PodScheduled`` to false, unless it is so already."""
        wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        found = (pod.manifest.get("status") or {}).get("conditions") or ()
        if any(wanted.items() <= each.items() for each in found):
            return
        others = [each for each in found if each.get("type") != "PodScheduled"]
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [*others, wanted]}}
        try:
            self._client.patch(f"{pod.path}/status", patch)
        except ApiError as error:
            _log.info("condition not written", extra={"pod": pod.full_name, "reason": str(error)})

    # Called by the reflectors

    def _set_pods(self, pods: Iterable[Json]) -> None:
        with self._changed:
            self._pods = {}
            for each in pods:
                self._store_pod(parse_pod(each))
            self._assumed = {k: v for k, v in self._assumed.items() if k in self._pods}
            self._not_listed.discard(_PODS)
            self._count_change()

    def _apply_pod_event(self, kind: str, obj: Json) -> None:
        pod = parse_pod(obj)
        with self._changed:
            if kind == "DELETED":
                self._pods.pop(pod.uid, None)
                self._assumed.pop(pod.uid, None)
            else:
                self._store_pod(pod)
            self._count_change()

    def _store_pod(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        if _node_of(pod):
            self._assumed.pop(pod.uid, None)

    def _set_nodes(self, nodes: Iterable[Json]) -> None:
        with self._changed:
            self._nodes = {_name(each): each for each in nodes}
            self._not_listed.discard(_NODES)
            self._count_change()

    def _apply_node_event(self, kind: str, node: Json) -> None:
        with self._changed:
            self._nodes.pop(_name(node), None)
            if kind != "DELETED":
                self._nodes[_name(node)] = node
            self._count_change()

    def _count_change(self) -> None:
        self._changes += 1
        self._changed.notify_all()


def _binding(pod: Pod, node: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _node_of(pod: Pod) -> str:
    return pod.manifest["spec"].get("nodeName") or ""
