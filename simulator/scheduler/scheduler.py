"""Binding pods to nodes, several at once and each after a delay of its own.

So pods are bound in another order than they were created in, which is what a node agent
must be able to live with. Without extenders; :mod:`simulator.scheduler.extended` has them.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from simulator.client import ApiClient, ApiError, Json
from simulator.scheduler.binding import post_binding
from simulator.scheduler.fit import fitting_nodes, node_of, pod_requests, used_by_node, waits
from simulator.scheduler.reflector import Reflector

_PODS = "/api/v1/pods"
_NODES = "/api/v1/nodes"
_RETRY_S = 0.1
_JOIN_S = 15.0
_REFUSED = (404, 409)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pod on its way to a node: it takes room there before the API server knows."""

    pod: Json
    node: str


class Scheduler:
    """Binds what fits, and tries the rest again whenever something changes.

    Args:
        client: the API server.
        seed: of the choice among nodes and of the delays.
        workers: how many bindings are under way at once.
        max_delay: seconds, the longest delay before a binding.
        clock: gives monotonic seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        seed: int = 0,
        workers: int = 8,
        max_delay: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._random = Random(seed)  # noqa: S311 - a simulation is to be repeatable
        self._workers = workers
        self._max_delay = max_delay
        self._clock = clock
        self._changed = threading.Condition()
        self._generation = 0
        self._pods: dict[str, Json] = {}
        self._nodes: dict[str, Json] = {}
        self._plans: dict[str, _Plan] = {}
        self._not_before: dict[str, float] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin; returns at once."""
        pods = Reflector(self._client, _PODS, on_list=self._replace_pods, on_event=self._pod_event)
        nodes = Reflector(
            self._client, _NODES, on_list=self._replace_nodes, on_event=self._node_event
        )
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
        self._notify()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def run(self, stop: threading.Event) -> None:
        """Work until *stop* is set, for a process of its own."""
        self.start()
        stop.wait()
        self.stop()

    def _schedule(self) -> None:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="binder") as binders:
            seen = -1
            while not self._stop.is_set():
                with self._changed:
                    if seen == self._generation:
                        self._changed.wait(self._until_retry())
                    seen = self._generation
                    plans = self._make_plans()
                for key, plan, delay in plans:
                    binders.submit(self._bind, key, plan, delay)

    def _make_plans(self) -> list[tuple[str, _Plan, float]]:
        """Decide for every pod that waits, in the order of creation."""
        used = used_by_node(
            [(node_of(pod), pod) for pod in self._pods.values() if node_of(pod)]
            + [(plan.node, plan.pod) for plan in self._plans.values()]
        )
        now = self._clock()
        # What is due now is tried now; if there is no room, only a change helps.
        self._not_before = {key: due for key, due in self._not_before.items() if due > now}
        made = []
        for key, pod in sorted(self._pods.items(), key=_queue_order):
            if key in self._plans or not waits(pod) or key in self._not_before:
                continue
            nodes = fitting_nodes(pod, self._nodes.values(), used)
            if not nodes:
                continue
            plan = _Plan(pod, self._random.choice(nodes))
            self._plans[key] = plan
            used.setdefault(plan.node, Counter()).update(pod_requests(pod))
            made.append((key, plan, self._random.uniform(0, self._max_delay)))
        return made

    def _until_retry(self) -> float | None:
        """Return the seconds until a pod is due again; nothing due, nothing to wait for."""
        if not self._not_before:
            return None
        return max(min(self._not_before.values()) - self._clock(), 0.0)

    def _bind(self, key: str, plan: _Plan, delay: float) -> None:
        if self._stop.wait(delay):
            return
        try:
            post_binding(self._client, plan.pod, plan.node)
        except ApiError as error:
            self._give_up(key, plan, retry=error.status not in _REFUSED)
        else:
            self._bound(key, plan)

    def _bound(self, key: str, plan: _Plan) -> None:
        """Count the pod on its node from now on, though the watch may show it only later."""
        with self._changed:
            known = self._pods.get(key)
            if known is not None and not node_of(known):
                self._pods[key] = {**known, "spec": {**known["spec"], "nodeName": plan.node}}
            self._plans.pop(key, None)

    def _give_up(self, key: str, plan: _Plan, *, retry: bool) -> None:
        """Free the room. A pod that was refused is gone or bound: the watch will tell."""
        with self._changed:
            if self._plans.get(key) is plan:
                del self._plans[key]
            # Also after a refusal, in case it was for a reason that passes.
            self._not_before[key] = self._clock() + (_RETRY_S if retry else 5 * _RETRY_S)
            self._generation += 1
            self._changed.notify_all()

    def _replace_pods(self, pods: Iterable[Json]) -> None:
        with self._changed:
            self._pods = {pod["metadata"]["uid"]: pod for pod in pods}
            self._forget_missing()
        self._notify()

    def _pod_event(self, kind: str, pod: Json) -> None:
        key = pod["metadata"]["uid"]
        with self._changed:
            if kind == "DELETED":
                self._pods.pop(key, None)
                self._forget_missing()
            elif node_of(pod) or not node_of(self._pods.get(key, {})):
                # An older event does not unbind what this scheduler has bound meanwhile.
                self._pods[key] = pod
        self._notify()

    def _forget_missing(self) -> None:
        self._not_before = {k: v for k, v in self._not_before.items() if k in self._pods}

    def _replace_nodes(self, nodes: Iterable[Json]) -> None:
        with self._changed:
            self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._notify()

    def _node_event(self, kind: str, node: Json) -> None:
        with self._changed:
            if kind == "DELETED":
                self._nodes.pop(node["metadata"]["name"], None)
            else:
                self._nodes[node["metadata"]["name"]] = node
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._generation += 1
            self._changed.notify_all()


def _queue_order(item: tuple[str, Json]) -> tuple[str, str, str, str]:
    key, pod = item
    metadata = pod["metadata"]
    return (
        metadata.get("creationTimestamp", ""),
        metadata.get("namespace", ""),
        metadata["name"],
        key,
    )
