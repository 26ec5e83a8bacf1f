"""Speed of the scheduler extender, and its start on a large cluster.

1. The time for filter and prioritize of one pod while pods are created and deleted, compared with
   first-fit over the same cards.
2. The number of pods that are placed and bound in a second, without the request to the API server:
   equal pods, then pods of several sizes, compared with first-fit, three times by turns.
3. The time of a process from its start until it is ready, and its memory then.

The first two are CPU time of the deciding thread, so other load on the machine affects them less.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

from bench.cluster import Json, Listing, listing
from bench.filled import CARDS, LIMITS, NAMES, Filled, first_fit, node_object, pod_object
from bench.process import ProcessFailed, resident_mib
from bench.result import Result, Table
from bench.servers import make_certificates, serving
from common.serving.server import tune_garbage_collector
from scheduler.binding import Binder
from scheduler.cluster import SchedulerApi
from scheduler.decisions import Decisions
from scheduler.handler import ExtenderHandler
from scheduler.metrics import Metrics
from scheduler.state import State
from simulator.api.server import kubeconfig_for
from simulator.cluster import free_port

NAME = "scheduler"

_SIZES = (100, 1000, 5000)
_BURST_NODES, _TURNS = 1000, 3
_BURSTS = {"equal": ((10, 2),), "of six sizes": LIMITS[:6]}
_LARGE = (5000, 100_000)
_SETS = ((200, 32), (400, 64))
_DEADLINE_S = 300.0


def run(*, decisions: int = 400, burst: int = 1000, large: tuple[int, int] = _LARGE) -> Result:
    """Measure, with the garbage collector tuned as in the extender's worker."""
    rows: list[tuple[float, ...]] = []
    for nodes in _SIZES:
        made = Speed(nodes)
        with _tuned_garbage_collector():
            made.measure(decisions)
        rows.append(
            (
                nodes,
                made.pods,
                nodes_sent(nodes),
                round(median(made.ours), 2),
                round(_p99(made.ours), 2),
                round(_p99(made.first_fit), 2),
                round(sum(made.ours) / sum(made.first_fit), 1),
            )
        )
    bursts = [
        (turn + 1, name, round(rates[0]), round(rates[1]), round(rates[1] / rates[0], 1))
        for turn in range(_TURNS)
        for name, limits in _BURSTS.items()
        for rates in [burst_rate(_BURST_NODES, burst, limits)]
    ]
    seconds, mib = start(*large)
    return Result(
        NAME,
        (
            Table(
                "filter + prioritize of one pod, ms of CPU",
                ("nodes", "pods", "nodes sent", "median", "p99", "first-fit p99", "times as long"),
                rows,
                (
                    f"{decisions} pods of {len(LIMITS) + len(_SETS)} sizes, with decoding of JSON",
                    "before each of them, one pod is added or removed on some node",
                    "nodes sent: as many as kube-scheduler sends (numFeasibleNodesToFind), in turn",
                    "first-fit: the first card where the pod fits, on each node sent; no JSON",
                ),
            ),
            Table(
                f"a burst, {_BURST_NODES} nodes, pods per second and CPU core",
                ("turn", "pods", "a second", "first-fit", "times as long"),
                bursts,
                ("filter, prioritize and bind, with JSON, without the request to the API server",),
            ),
            Table(
                f"a process with {large[0]} nodes and {large[1]} pods",
                ("start to ready, s", "resident, MiB"),
                ((round(seconds, 1), round(mib)),),
            ),
        ),
    )


def nodes_sent(nodes: int) -> int:
    """Return how many nodes kube-scheduler sends (``numFeasibleNodesToFind`` of 1.36)."""
    if nodes < 100:
        return nodes
    return max(nodes * max(50 - nodes // 125, 5) // 100, 100)


@contextlib.contextmanager
def _tuned_garbage_collector() -> Iterator[None]:
    before = gc.get_threshold()
    tune_garbage_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[98]


# --- single decisions -----------------------------------------------------------------


class Speed:
    """Decisions about single pods in a cluster of one size."""

    def __init__(self, nodes: int) -> None:
        self._cluster = Filled(nodes)
        self._handler = handler_of(self._cluster.state)
        self._sent = nodes_sent(nodes)
        self.pods = self._cluster.count
        self.ours: list[float] = []
        self.first_fit: list[float] = []

    def measure(self, count: int) -> None:
        """Place *count* pods, ours and first-fit in turns."""
        cluster, start_at = self._cluster, 0
        for number in range(count):
            if number % 2:
                cluster.end_one()
            else:
                limit = cluster.random.choice(LIMITS)
                cluster.add(cluster.random.choice(cluster.names), limit)
            limit = cluster.random.choice((*LIMITS, *_SETS))
            names = (cluster.names * 2)[start_at : start_at + self._sent]
            start_at = (start_at + self._sent) % cluster.nodes
            fitting, _, seconds = decide(self._handler, pod_object("new", limit), names)
            self.ours.append(seconds * 1e3)
            began = time.thread_time()
            found = [name for name in names if first_fit(cluster.free[name], limit) >= 0]
            self.first_fit.append((time.thread_time() - began) * 1e3)
            if found != fitting:
                raise ProcessFailed(f"first-fit finds {len(found)} nodes, filter {len(fitting)}")


def extender_args(pod: Json, nodes: Sequence[str]) -> bytes:
    """Return the body of a filter or prioritize request as kube-scheduler sends it."""
    arguments = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
    return json.dumps(arguments, separators=(",", ":")).encode()


def binding(pod: Json, node: str) -> bytes:
    """Return the body of a bind request as kube-scheduler sends it."""
    metadata = pod["metadata"]
    ids = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"]}
    return json.dumps({**ids, "PodUID": metadata["uid"], "Node": node}).encode()


def handler_of(state: State) -> ExtenderHandler:
    """Return the extender's handler, without HTTP and without an API server."""
    metrics = Metrics()
    return ExtenderHandler(
        decisions=Decisions(state),
        binder=Binder(state, _NoRequests(), on_result=metrics.bound),
        names=NAMES,
        metrics=metrics,
        in_step=lambda: True,
        not_binding=lambda: "",
    )


def decide(
    handler: ExtenderHandler, obj: Json, nodes: Sequence[str]
) -> tuple[list[str], list[int], float]:
    """Handle filter and prioritize of one pod, without HTTP.

    Returns:
        The nodes that fit, their scores, and seconds of CPU.
    """
    body = extender_args(obj, nodes)
    began = time.thread_time()
    response = handler.decide("filter", lambda: body)
    seconds = time.thread_time() - began
    fitting = json.loads(response.body)["NodeNames"]
    # kube-scheduler sends the pod again, with the nodes that fit.
    again = extender_args(obj, fitting)
    began = time.thread_time()
    response = handler.decide("prioritize", lambda: again)
    seconds += time.thread_time() - began
    return fitting, [each["Score"] for each in json.loads(response.body)], seconds


# --- a burst --------------------------------------------------------------------------


class _NoRequests(SchedulerApi):
    """An API server that responds at once to a Binding; the state has every pod."""

    def __init__(self) -> None:
        """Read no credentials."""

    async def bind(self, namespace: str, name: str, binding: Json) -> None:
        """Do nothing."""


def burst_rate(nodes: int, pods: int, limits: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return how many pods are scheduled in a second of CPU time, ours and first-fit.

    Args:
        nodes: the number of nodes.
        pods: the number of pods.
        limits: cores and memory blocks of the pods, in turn.
    """
    cluster = Filled(nodes)
    handler = handler_of(cluster.state)
    sent, start_at = nodes_sent(nodes), 0
    burst = [
        (limit, pod_object(f"burst-{number}", limit))
        for number, limit in zip(range(pods), itertools.cycle(limits))
    ]
    for _, obj in burst:
        obj["status"]["phase"] = "Pending"
        cluster.state.put_pod(obj)
    ours = theirs = 0.0
    loop = asyncio.new_event_loop()
    with _tuned_garbage_collector():
        for limit, obj in burst:
            names = (cluster.names * 2)[start_at : start_at + sent]
            start_at = (start_at + sent) % nodes
            fitting, scores, seconds = decide(handler, obj, names)
            body = binding(obj, fitting[scores.index(max(scores))])
            began = time.thread_time()
            response = loop.run_until_complete(handler.bind(lambda body=body: body))  # type: ignore[misc]
            ours += seconds + time.thread_time() - began
            if json.loads(response.body)["Error"]:
                raise ProcessFailed(f"bind: {response.body.decode()}")
            began = time.thread_time()
            first = next(name for name in names if first_fit(cluster.free[name], limit) >= 0)
            row = cluster.free[first][first_fit(cluster.free[first], limit)]
            row[0] -= limit[0]
            row[1] -= limit[1]
            theirs += time.thread_time() - began
    loop.close()
    return pods / ours, pods / max(theirs, 1e-9)


# --- a process ------------------------------------------------------------------------


def start(nodes: int, pods: int) -> tuple[float, float]:
    """Start an extender's process on a large cluster.

    Returns:
        Seconds until it is ready, and its worker's resident MiB then.

    Raises:
        ProcessFailed: it ended, or was not ready in time.
    """

    def pod(number: int) -> Json:
        node, index = number % nodes, number // nodes
        uid = f"{number:08}-0000-4000-8000-000000000000"
        return pod_object(uid, LIMITS[index % 5], f"node-{node:05}", str(index % CARDS))

    objects = {"nodes": Listing(nodes, node_object), "pods": Listing(pods, pod)}
    with tempfile.TemporaryDirectory(prefix="gt-bench-") as made, listing(objects) as url:
        folder, port = Path(made), free_port()
        make_certificates(folder)
        (folder / "kubeconfig").write_text(kubeconfig_for(url), encoding="utf-8")
        command = [
            *("scheduler", "--host", "127.0.0.1", "--port", str(port)),
            *("--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")),
            *("--lease", "", "--kubeconfig", str(folder / "kubeconfig")),
        ]
        with serving(command, folder, port, within=_DEADLINE_S) as server:
            (worker,) = server.workers()
            return server.ready_s, resident_mib(worker)
