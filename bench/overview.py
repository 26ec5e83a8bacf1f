"""Duration of ``kubectl gpu`` on a large cluster, and its load on the API server.

A stand-in for the API server returns pages that were encoded before. Its nodes and pods are as
large as real ones, with ``managedFields`` and status. ``kubectl gpu`` runs as its own process, as
users start it. Its CPU time is compared with ``json.loads`` of the same bytes in this process; the
two take turns. Then requests and bytes are counted: of one command, and of the web page while a
browser shows a pending pod.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from bench.cluster import Json, Listing, listing
from bench.process import running, wait
from bench.result import Result, Table, wrong
from contract.allocation import Allocation, Evidence, encode_allocations
from contract.inventory import Amounts, Card, PublishedInventory, encode_inventory
from contract.names import Names
from simulator.api.server import kubeconfig_for
from simulator.cluster import free_port

NAME = "overview"

_CARDS = 8
_BLOCK = 256 << 20
_CARD_MEMORY = 80 << 30
_MOST_A_MINUTE = 25
"""Requests of an open page without changes in the cluster: 15 checks whether the server is
reachable and 6 reads of the pod's Events, when the page is built again."""

_NO_AGENTS = "/api/v1/namespaces/gpu-turnstile-node/pods"
_DEADLINE = 120.0
_START = "from view.kubectl import main; main()"
_SHARES = (30, 50, 40, 50)
_PENDING = 20


def run(*, nodes: int = 1000, pods: int = 12_570, rounds: int = 5, seconds: float = 60.0) -> Result:
    """Measure.

    Args:
        nodes: number of nodes, of eight cards each.
        pods: number of pods; one in twelve requests no GPU.
        rounds: how often command and decoding are timed; the medians count.
        seconds: how long the page is open.
    """
    load = _Load()
    objects = {
        "nodes": Listing(nodes, _node).encoded(),
        "pods": Listing(pods, partial(_some_pod, nodes, pods)).encoded(),
    }
    pages = [page for each in objects.values() for page in each.pages]
    with (
        listing({_NO_AGENTS: Listing(0, _node), **objects}, load.take) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        kubeconfig = Path(folder, "config")
        kubeconfig.write_text(kubeconfig_for(url), encoding="utf-8")
        measured = [(_command(kubeconfig), _decoding(pages)) for _ in range(rounds)]
        load.begin()
        _command(kubeconfig)
        command = load.totals()
        load.begin()
        with _page(kubeconfig) as page:
            starting = load.totals()
            load.begin()
            _reload(page, "/pods/{}/{}".format(*_pending_pod(pods)), seconds)
            opened = load.totals()
    wall, cpu, alone = (
        median(each) for each in zip(*[(*own, base) for own, base in measured], strict=True)
    )
    ratio = median(own[1] / base for own, base in measured)
    size = sum(map(len, pages)) / 2**20
    table = Table(
        f"kubectl gpu, {nodes} nodes of {_CARDS} cards, {pods} pods, {size:.0f} MiB of JSON",
        ("", "seconds"),
        (
            ("until all is printed", f"{wall:.2f}"),
            ("CPU", f"{cpu:.2f}"),
            ("json.loads of the same", f"{alone:.2f}"),
            ("CPU : json.loads", f"{ratio:.2f}"),
        ),
    )
    requests = Table(
        "Load on the API server",
        ("", "requests", "of these lists", "of these watches", "MiB"),
        (
            ("kubectl gpu, once", *command),
            ("the page, until it is ready", *starting),
            (f"the page, open for {seconds:.0f} s", *opened),
        ),
    )
    a_minute = (opened[0] - opened[2]) * 60 / seconds
    many = f"requests a minute of an open page above {_MOST_A_MINUTE}"
    return Result(NAME, (table, requests), wrong({many: round(max(a_minute - _MOST_A_MINUTE, 0))}))


def _command(kubeconfig: Path) -> tuple[float, float]:
    """Run the command; return its wall and CPU seconds."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    began = time.monotonic()
    with subprocess.Popen(  # noqa: S603 -- this interpreter
        [sys.executable, "-c", _START], env=environment, stdout=subprocess.PIPE
    ) as process:
        out = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or b"Pending pods (" not in out:
        raise OSError(f"kubectl gpu ended with {process.returncode}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


@contextmanager
def _page(kubeconfig: Path) -> Iterator[str]:
    """Serve the page; yield its URL when it is ready."""
    port = free_port()
    url, options = f"http://127.0.0.1:{port}", f"serve --port {port} --kubeconfig {kubeconfig}"
    with running(["view", *options.split()], kubeconfig.with_name("log")) as process:
        wait(lambda: _returns_200(f"{url}/readyz"), "the page is ready", process, within=_DEADLINE)
        yield url


def _returns_200(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 -- ours
        return bool(response.status == 200)
    time.sleep(0.1)
    return False


def _reload(url: str, path: str, seconds: float) -> None:
    """Load a pod's page every second, as a browser does if the cluster changes."""
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        if not _returns_200(f"{url}{path}"):
            raise OSError(f"no page at {path}")
        time.sleep(min(remaining, 1.0))


def _decoding(pages: Sequence[bytes]) -> float:
    gc.disable()  # as kubectl gpu does while it reads
    try:
        began = time.process_time()
        for page in pages:
            json.loads(page)
        return time.process_time() - began
    finally:
        gc.enable()


# --- the cluster ----------------------------------------------------------------------


def _node(number: int) -> Json:
    names = Names()
    name = f"node-{number:04}"
    cards = tuple(
        Card(
            _uuid(number, card),
            card,
            "NVIDIA A100-SXM4-80GB",
            _CARD_MEMORY,
            card // 4,
        )
        for card in range(_CARDS)
    )
    inventory = PublishedInventory(_BLOCK, cards, free=(Amounts(50, 160),) * _CARDS)
    resources = {names.core: str(100 * _CARDS), "cpu": "128", "memory": "1056761492Ki"}
    return {
        "metadata": {
            **_metadata(name, f"node-{number}"),
            "annotations": {names.gpu_cards: encode_inventory(inventory)},
            "managedFields": _managed("kubelet", "agent", "kube-controller-manager"),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud:///zone/{name}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [_condition(each, each == "Ready") for each in _CONDITIONS],
            "images": [
                {"names": [f"registry.example/image-{each}@sha256:{'0' * 64}"], "sizeBytes": 1}
                for each in range(50)
            ],
        },
    }


def _some_pod(nodes: int, count: int, number: int) -> Json:
    node = f"node-{number % nodes:04}"
    if number % 12 == 11:
        return _pod(number, node, 0)
    if number >= count - _PENDING:
        return _pod(number, "", 95)
    card = number // nodes % _CARDS  # up to two shares a card
    return _pod(number, node, _SHARES[number % 4], _uuid(number % nodes, card))


@dataclass
class _Load:
    """Requests and bytes since :meth:`begin`."""

    counts: Counter[str] = field(default_factory=Counter)
    size: int = 0

    def begin(self) -> None:
        self.counts, self.size = Counter(), 0

    def take(self, url: str, size: int) -> None:
        kinds = ("watch", "limit")
        self.counts[next((each for each in kinds if f"{each}=" in url), "")] += 1
        self.size += size

    def totals(self) -> tuple[int, int, int, float]:
        """Return the number of requests, of lists and of watches, and MiB."""
        lists, watches = self.counts["limit"], self.counts["watch"]
        return self.counts.total(), lists, watches, round(self.size / 2**20, 2)


def _pending_pod(count: int) -> tuple[str, str]:
    """Return namespace and name of a pending pod."""
    number = next(each for each in range(count - 1, 0, -1) if each % 12 != 11)
    return f"team-{number % 40}", f"train-{number}"


def _pod(number: int, node: str, cores: int, uuid: str = "") -> Json:
    names, container = Names(), f"main-{number % 7}"
    limits = {"cpu": "4", "memory": "16Gi"}
    annotations = {"example.com/owner": f"team-{number % 40}"}
    if cores:
        blocks = 320 * cores // 100
        limits |= {names.core: str(cores), names.memory: str(blocks)}
        annotations[names.admission_order] = f"{number:020}-w-00000000"
        if uuid:
            allocation = Allocation((uuid,), cores, blocks, Evidence.WITNESS)
            annotations[names.gpu_allocation] = encode_allocations({container: allocation})
            annotations[names.bind_order] = f"{number:020}-w-00000001"
    at = "2026-01-01T08:00:00Z"
    return {
        "metadata": {
            **_metadata(f"train-{number}", f"pod-{number}"),
            "namespace": f"team-{number % 40}",
            "annotations": annotations,
            "managedFields": _managed("kube-controller-manager", "agent", "kubelet"),
        },
        "spec": {
            "volumes": [{"name": "token", "projected": {"sources": [{"configMap": {}}] * 3}}],
            "containers": [
                {
                    "name": container,
                    "image": "registry.example/training:1.2.3",
                    "resources": {"limits": limits, "requests": limits},
                    "env": [{"name": f"VARIABLE_{each}", "value": "value"} for each in range(8)],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                    "terminationMessagePath": "/dev/termination-log",
                }
            ],
            "tolerations": [
                {"key": each, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for each in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "schedulerName": "default-scheduler",
            "restartPolicy": "Never",
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": [_condition(each, good=bool(node)) for each in _POD_CONDITIONS],
            "containerStatuses": [
                {
                    "name": container,
                    "state": {"running": {"startedAt": at}},
                    "image": "registry.example/training:1.2.3",
                    "imageID": f"registry.example/training@sha256:{'0' * 64}",
                    "containerID": f"containerd://{'0' * 64}",
                }
            ]
            if node
            else [],
        },
    }


_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_POD_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def _condition(kind: str, good: bool) -> Json:  # noqa: FBT001 -- the status
    at = "2026-01-01T08:00:00Z"
    return {"type": kind, "status": str(good), "lastProbeTime": None, "lastTransitionTime": at}


def _metadata(name: str, uid: str) -> Json:
    labels = {f"example.com/label-{each}": f"value-{each}" for each in range(6)}
    return {
        "name": name,
        "uid": uid,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T08:00:00Z",
        "labels": labels,
    }


def _managed(*managers: str) -> list[Json]:
    fields: Json = {f"f:field-{each}": {".": {}, "f:inner": {}} for each in range(10)}
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T08:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": fields, 'k:{"uid":"0"}': fields},
        }
        for manager in managers
    ]


def _uuid(node: int, card: int) -> str:
    return f"GPU-{node:08}-0000-0000-0000-{card:012}"
