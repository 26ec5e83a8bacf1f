"""A cluster worth looking at, as the API server has it: for browser tests and pictures."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

from contract.inventory import Amounts, decode_inventory, encode_inventory
from tests.placement.cluster.builders import NAMES, Json, hint, make_node, make_pod, record
from tests.view import scenes

A100, L40S = "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"
BEGAN = datetime(2026, 3, 9, 8, 0, 0, tzinfo=UTC)

Part = tuple[str, int, int, int]
"""Node, card, cores and blocks."""


def gpu_node(
    name: str,
    model: str = A100,
    cards: int = 4,
    *,
    blocks: int = 320,
    held: Sequence[Part] = (),
    unhealthy: Sequence[int] = (),
    disconnected: bool = False,
) -> Json:
    """A node, and what its agent has counted."""
    node = make_node(name, cards, blocks=blocks, models=[model] * cards, unhealthy=unhealthy)
    free = []
    for index in range(cards):
        taken = (Amounts(*each[2:]) for each in held if each[:2] == (name, index))
        free.append(reduce(Amounts.minus, taken, Amounts(100, blocks)))
    annotations = node["metadata"]["annotations"]
    inventory = replace(decode_inventory(annotations[NAMES.gpu_cards]), free=tuple(free))
    annotations[NAMES.gpu_cards] = encode_inventory(inventory)
    node["metadata"]["uid"] = f"u-{name}"
    offered = 0 if disconnected else 100 * (cards - len(unhealthy))
    node["status"] = {
        "allocatable": {NAMES.core: str(offered)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return node


def held_pod(namespace: str, name: str, *parts: Part) -> Json:
    """A pod that runs, with all its cards in one container."""
    node, blocks = parts[0][0], sum(each[3] for each in parts)
    cores = sum(each[2] for each in parts)
    uuids = [f"GPU-{node}-{index}" for _, index, _, _ in parts]
    pod = _pod(namespace, name, cores, blocks, node=node, phase="Running")
    pod["spec"]["containers"][0]["name"] = "main"
    pod["metadata"]["annotations"] |= record(main=(uuids, cores, blocks))
    status = {"name": "main", "state": {"running": {"startedAt": "2026-03-09T08:00:04Z"}}}
    pod["status"]["containerStatuses"] = [status]
    return pod


def waiting_pod(namespace: str, name: str, cores: int, blocks: int, message: str = "") -> Json:
    """A pod that has no node."""
    pod = _pod(namespace, name, cores, blocks)
    if message:
        pod["status"]["conditions"] = [scenes.unschedulable(message)]
    return pod


def _pod(namespace: str, name: str, *limit: int, node: str = "", phase: str = "Pending") -> Json:
    """A pod with the stamps of the webhook."""
    cores, blocks = limit
    pod = make_pod(name, (cores, blocks), node=node, phase=phase, namespace=namespace)
    pod["metadata"] |= {
        "uid": f"u-{namespace}-{name}",
        "annotations": scenes.stamps(node, int(BEGAN.timestamp())),
        "creationTimestamp": BEGAN.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    pod["spec"]["schedulerName"] = "gpu-turnstile"
    return pod


_HELD = {
    ("vision", "train-resnet-0"): [("a100-1", 0, 60, 160)],
    ("vision", "train-resnet-1"): [("a100-1", 1, 60, 160)],
    ("speech", "asr-batch-5f9c"): [("a100-1", 0, 25, 80)],
    ("speech", "tts-eval-7d1b"): [("a100-1", 1, 20, 48)],
    ("llm", "finetune-70b"): [("a100-1", 2, 100, 320), ("a100-1", 3, 100, 320)],
    ("llm", "serve-8b-6cc9d-x2lq"): [("a100-2", 0, 100, 320)],
    ("research", "notebook-ana"): [("a100-2", 1, 10, 24)],
    ("research", "notebook-ben"): [("a100-2", 1, 10, 24)],
    ("research", "notebook-chen"): [("a100-2", 1, 10, 24)],
    ("research", "notebook-dora"): [("a100-2", 1, 10, 24)],
    ("research", "notebook-emil"): [("a100-2", 1, 15, 32)],
    ("vision", "label-preview"): [("a100-2", 2, 30, 64)],
    ("speech", "diarize-nightly"): [("l40s-1", 0, 50, 96)],
}


FULL = "no card has 80 cores and 160 blocks free"
DENIED = (
    'Error creating: admission webhook "pods.gpu-turnstile.io" denied the request: '
    "spec.containers[0].resources.limits[tencent.com/vcuda-core]: Invalid value: 150: "
    "must be 1 to 100, or whole cards: 100, 200, ..."
)


def cluster() -> list[Json]:
    """Four nodes of which one has lost its agent, and pods of all kinds."""
    pods = [held_pod(namespace, name, *parts) for (namespace, name), parts in _HELD.items()]
    chosen = _pod("vision", "detect-canary", 40, 64, node="a100-2")
    chosen["metadata"]["annotations"] |= hint("2")
    held = [part for parts in _HELD.values() for part in parts]
    message = "0/4 nodes are available: 4 gpu-turnstile: fewer than 2 cards have 100 cores free."
    wide = waiting_pod("llm", "pretrain-13b", 200, 512, message)
    refused = _pod("vision", "augment-xl", 80, 160, node="l40s-1", phase="Failed")
    refused["status"] |= {
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to rpc error: code = ResourceExhausted desc = "
        f"{FULL}, which is unexpected",
    }
    owner = {"kind": "ReplicaSet", "metadata": {"name": "embedder-6b8f", "namespace": "research"}}
    return [
        gpu_node("a100-1", held=held),
        gpu_node("a100-2", held=held),
        gpu_node("l40s-1", L40S, 2, blocks=192, held=held, unhealthy=[1]),
        gpu_node("l40s-2", L40S, 2, blocks=192, disconnected=True),
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in _TEAMS),
        *pods,
        chosen,
        wide,
        refused,
        scenes.event(refused, "GPURefused", FULL, "gpu-turnstile-agent"),
        scenes.event(owner, "FailedCreate", DENIED, "replicaset-controller", at="08:57:00"),
    ]


_TEAMS = ("vision", "speech", "llm", "research")
