"""Speed of the scheduler extender, and its start on a large cluster.

1. The time for filter and prioritize of one pod while pods are created and deleted, compared with
   first-fit over the same cards.
2. The time of a process from its start until it is ready, and its memory then.

The first is CPU time of the deciding thread, so other load on the machine affects it less.
"""

import contextlib
import gc
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import cast

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
_LARGE = (5000, 100_000)
_SETS = ((200, 32), (400, 64))
_DEADLINE_S = 300.0


def run(*, decisions: int = 400, large: tuple[int, int] = _LARGE) -> Result:
    """Measure, with the garbage collector tuned as in the extender's worker."""
    rows: list[tuple[float, ...]] = []
    for nodes in _SIZES:
        made = Speed(nodes)
        with _tuned_garbage_collector():
            made.measure(decisions)
        ours, first = made.ours, made.first_fit
        times = median(ours), _p99(ours), _p99(first), sum(ours) / sum(first)
        rows.append((nodes, made.pods, nodes_sent(nodes), *times))
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
                f"a process with {large[0]} nodes and {large[1]} pods",
                ("start to ready, s", "resident, MiB"),
                ((seconds, mib),),
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
            fitting, seconds = decide(self._handler, pod_object("new", limit), names)
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


def handler_of(state: State) -> ExtenderHandler:
    """Return the extender's handler, without HTTP and without an API server."""
    metrics = Metrics()
    return ExtenderHandler(
        decisions=Decisions(state),
        binder=Binder(state, cast(SchedulerApi, None)),  # no pod is bound
        names=NAMES,
        metrics=metrics,
        in_step=lambda: True,
        not_binding=lambda: "",
    )


def decide(handler: ExtenderHandler, obj: Json, nodes: Sequence[str]) -> tuple[list[str], float]:
    """Handle filter and prioritize of a pod, without HTTP; return the nodes and seconds of CPU."""
    fitting, seconds = list(nodes), 0.0
    for verb in ("filter", "prioritize"):  # the second for the nodes of the first response
        body = extender_args(obj, fitting)
        began = time.thread_time()
        response = handler.decide(verb, lambda body=body: body)  # type: ignore[misc]
        seconds += time.thread_time() - began
        if verb == "filter":
            fitting = json.loads(response.body)["NodeNames"]
    return fitting, seconds


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
