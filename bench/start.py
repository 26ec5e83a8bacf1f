"""Time until a burst of pods runs on a real cluster: pods with GPU shares, and pods without a GPU.

Both bursts have equally many pods on the same node and take turns, so other load on the cluster
affects both. A node serves its cards as a device plugin or by claims; each mode is measured if the
cluster has a node with it. All pods are in an own namespace, which is deleted at the end.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from bench.process import ProcessFailed
from bench.result import Cell, NotPossible, Result, Table
from common.apiserver.client import Client
from contract.claims import serves_claims
from contract.inventory import decode_inventory
from contract.names import Names
from view.cluster.connection import connect

Json = dict[str, Any]
Seconds = Sequence[tuple[float, float]]
"""Of each turn: with shares, without a GPU."""

NAME = "start"
MODES: Final = ("device plugin", "claims")
IMAGE = "registry.k8s.io/pause:3.10"

_NAMES = Names()
_CORES = range(5, 0, -1)  # of a share, which also has a memory block
_CLIENTS = 16
_WITHIN_S, _POLL_S, _REQUEST_S = 300.0, 0.1, 30.0
_PAUSE_S = 5.0
"""Between bursts: kube-controller-manager writes 20 claims a second, after 30 at once."""


@dataclass(frozen=True, slots=True)
class Target:
    """A node to measure, and the cores of a share of which enough fit there."""

    mode: str
    node: str
    cores: int


def run(
    environment: Mapping[str, str] = os.environ,
    *,
    pods: int = 36,
    turns: int = 5,
    image: str = IMAGE,
) -> Result:
    """Measure on the cluster of ``KUBECONFIG``, with an image that runs until it is ended.

    Raises:
        NotPossible: there is no cluster, or no node with room.
        ProcessFailed: a pod failed, or did not run in time.
    """
    if not environment.get("KUBECONFIG"):
        raise NotPossible("KUBECONFIG names no cluster")
    client = connect(None, None, environment, user_agent="gpu-turnstile-bench").client
    nodes = client.list("/api/v1/nodes", {})[0]
    targets, reasons = [], []
    for mode in MODES:
        try:
            targets.append(choose(mode, nodes, lambda node: _pods_on(client, node), pods))
        except NotPossible as error:
            reasons.append(str(error))
    if not targets:
        raise NotPossible("; ".join(reasons))
    with namespace(client) as made:
        bursts = Bursts(client, made, image)
        seconds = {each: bursts.measure(each, pods, turns) for each in targets}
    return Result(NAME, [table(seconds, pods, reasons)])


def choose(mode: str, nodes: Sequence[Json], pods_on: Callable[[str], int], pods: int) -> Target:
    """Choose the node with the largest shares of which enough fit.

    Args:
        mode: how the node serves its cards.
        nodes: the nodes of the cluster.
        pods_on: returns the number of pods on a node, by its name.
        pods: the number of pods of a burst.

    Raises:
        NotPossible: there is none.
    """
    rooms = [(0, 0, "")]  # cores of a share, number of shares, node
    for node in nodes:
        name = node["metadata"]["name"]
        if MODES[serves_claims(node["metadata"].get("labels") or {})] == mode and _is_usable(node):
            slots = int(node["status"]["allocatable"]["pods"]) - pods_on(name)
            counts = [(cores, min(shares_of(node, cores), slots)) for cores in _CORES]
            fitting = next((each for each in counts if each[1] >= pods), counts[-1])
            rooms.append((*fitting, name))
    cores, room, name = max(rooms)
    if room < pods:
        found = f"only {room} of {pods} pods fit on node {name}" if name else "no node has cards"
        raise NotPossible(f"{mode}: {found}")
    return Target(mode, name, cores)


def shares_of(node: Json, cores: int) -> int:
    """Return how many shares of so many cores and one memory block fit on a node's cards."""
    text = (node["metadata"].get("annotations") or {}).get(_NAMES.gpu_cards)
    if text is None:
        return 0
    inventory = decode_inventory(text)
    return sum(
        min(free.cores // cores, free.memory)
        for card, free in zip(inventory.cards, inventory.free, strict=True)
        if not card.withheld
    )


def _is_usable(node: Json) -> bool:
    """Return whether a node is ready, takes pods and offers cores."""
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
    offered = node["status"].get("allocatable", {}).get(_NAMES.core, "0") != "0"
    return offered and conditions.get("Ready") == "True" and not node["spec"].get("unschedulable")


def _pods_on(client: Client, node: str) -> int:
    query = {"fieldSelector": f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"}
    return len(client.list("/api/v1/pods", query)[0])


def table(seconds: Mapping[Target, Seconds], pods: int, reasons: Sequence[str]) -> Table:
    """Return the table: seconds with shares and without a GPU by turn, why a mode is missing."""
    rows: list[tuple[Cell, ...]] = []
    for target, turns in seconds.items():
        ours, plain = (median(each) for each in zip(*turns, strict=True))
        ratio = median(one / other for one, other in turns)
        each = ", ".join(f"{one:.1f} : {other:.1f}" for one, other in turns)
        rows.append((target.mode, ours, plain, ratio, each))
    return Table(
        f"Seconds until the last of {pods} pods runs, medians",
        ("mode", "with shares", "without a GPU", "times as long", "each turn"),
        rows,
        (
            *(
                f"{each.mode}: {each.cores} cores and 1 memory block a pod, node {each.node}"
                for each in seconds
            ),
            *(f"not measured: {each}" for each in reasons),
        ),
    )


@contextmanager
def namespace(client: Client) -> Iterator[str]:
    """Create a namespace and yield its name; delete it at the end, also after SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    obj: Json = {"metadata": {"generateName": "gpu-turnstile-bench-"}}
    made = client.call("POST", "/api/v1/namespaces", obj, timeout=_REQUEST_S)
    name = made["metadata"]["name"]
    try:
        yield name
    finally:
        client.call("DELETE", f"/api/v1/namespaces/{name}", timeout=_REQUEST_S)
        signal.signal(signal.SIGTERM, before)


class Bursts:
    """Bursts of pods in one namespace.

    Args:
        client: the client of the API server.
        namespace: the namespace.
        image: the image of the pods; it runs until it is ended.
        clock: returns the time in seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        image: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._objects = f"/api/v1/namespaces/{namespace}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._image = image
        self._clock, self._sleep = clock, sleep

    def measure(self, target: Target, pods: int, turns: int) -> Seconds:
        """Run both bursts by turns.

        One pod of each kind runs before, so that the node has the image.
        """
        account = f"{self._objects}/serviceaccounts/default"
        found = self._client.find
        self._wait("the service account", lambda: found(account, timeout=_REQUEST_S) is not None)
        counts = 1, *(turns * [pods])
        seconds = [
            (self._burst(target, n, target.cores), self._burst(target, n, 0)) for n in counts
        ]
        return seconds[1:]

    def _burst(self, target: Target, count: int, cores: int) -> float:
        """Create pods at once; return the seconds until all run, after they were deleted again."""
        pods = [self._pod(f"burst-{each}", target.node, cores) for each in range(count)]
        path, began = f"{self._objects}/pods", self._clock()
        with ThreadPoolExecutor(_CLIENTS) as clients:
            list(clients.map(lambda pod: self._client.call("POST", path, pod, timeout=60.0), pods))
        self._wait(f"all {count} pods run", lambda: self._running() == count)
        seconds = self._clock() - began
        self._client.call("DELETE", path, timeout=_REQUEST_S)
        self._wait("the end of the pods", lambda: not self._client.list(path, {})[0])
        if target.mode == MODES[1]:
            self._wait("the end of claims", lambda: not self._client.list(self._claims, {})[0])
        self._sleep(_PAUSE_S)
        return seconds

    def _running(self) -> int:
        """Return the number of pods that run.

        Raises:
            ProcessFailed: one has failed.
        """
        pods = self._client.list(f"{self._objects}/pods", {})[0]
        for each in pods:
            if each["status"].get("phase") == "Failed":
                message = each["status"].get("message")
                raise ProcessFailed(f"pod {each['metadata']['name']} failed: {message}")
        return sum(each["status"].get("phase") == "Running" for each in pods)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = self._clock() + _WITHIN_S
        while not condition():
            if self._clock() > deadline:
                raise ProcessFailed(f"not within {_WITHIN_S:g} s: {what}")
            self._sleep(_POLL_S)

    def _pod(self, name: str, node: str, cores: int) -> Json:
        """Return a pod for a node: with a share of so many cores, or with 0 without a GPU."""
        limits = {_NAMES.core: str(cores), _NAMES.memory: "1"} if cores else {}
        fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        only = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [fields]}}
        container = {"name": "main", "image": self._image, "resources": {"limits": limits}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "affinity": {"nodeAffinity": only},
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
            },
        }
