"""A small cluster with GPU pods in every stage."""

from datetime import UTC, datetime, timedelta
from typing import Any

from contract.inventory import Amounts, Card, PublishedInventory, encode_inventory
from contract.stamps import OrderStamp
from tests.placement.cluster.builders import (
    BLOCK,
    NAMES,
    Json,
    bare_node,
    hint,
    make_node,
    make_pod,
    record,
)

HOSTILE = "\x1b[31m[red]evil\x1b]0;title\x07\u202e"
"""Control characters of terminals, markup, and a change of the text direction."""

STAMPED = 1_763_800_000
NOW = datetime(2025, 11, 22, 9, tzinfo=UTC)
CREATED = "2025-11-22T08:26:40Z"
"""The same."""


def stamps(node: str = "", at: int = STAMPED) -> dict[str, str]:
    """What the webhook writes at creation, and with *node* at binding too."""
    found = {NAMES.admission_order: OrderStamp(at * 10**9, "w", 0).encode()}
    if node:
        found[NAMES.bind_order] = OrderStamp((at + 5) * 10**9, "w", 0).encode()
        found[NAMES.predicate_node] = node
    return found


def running(name: str, limit: tuple[int, int], node: str, card: int, **pod: Any) -> Json:
    """A pod that runs on one card, reported by the agent."""
    cores, blocks = limit
    uuids = tuple(f"GPU-{node}-{card + each}" for each in range(max(cores // 100, 1)))
    annotations = {**stamps(node), **record(c0=(uuids, cores, blocks))}
    obj = make_pod(name, limit, node=node, annotations=annotations, phase="Running", **pod)
    obj["status"]["containerStatuses"] = [
        {"name": "c0", "state": {"running": {"startedAt": "2025-11-22T08:00:00Z"}}}
    ]
    return obj


def waiting(name: str, *limits: tuple[int, int], message: str = "", **pod: Any) -> Json:
    """A pod that the scheduler has looked at and not bound."""
    annotations = {**stamps(), **pod.pop("annotations", {})}
    obj = make_pod(name, *limits, annotations=annotations, **pod)
    obj["metadata"]["creationTimestamp"] = CREATED
    if message:
        obj["status"]["conditions"] = [unschedulable(message)]
    return obj


def unschedulable(message: str, reason: str = "Unschedulable") -> Json:
    """The condition of a pod that got no node."""
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}


SHAPE = "gpu-turnstile-0123456789abcdef"


def claimed(pod: Json, claim: str = "") -> Json:
    """The pod with the claim of the webhook; with a name of the claim it is made, too."""
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": SHAPE}]
    if claim:
        made = {"name": "gpus", "resourceClaimName": claim}
        pod["status"]["resourceClaimStatuses"] = [made]
    return pod


def refused(name: str, limit: tuple[int, int], node: str, text: str) -> Json:
    """A pod that an agent has refused."""
    obj = make_pod(name, limit, node=node, annotations=stamps(node), phase="Failed")
    obj["metadata"]["creationTimestamp"] = CREATED
    obj["status"]["reason"] = "UnexpectedAdmissionError"
    obj["status"]["message"] = (
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition "
        f"desc = {text}, which is unexpected"
    )
    return obj


def owned(pod: Json, kind: str, name: str, created: str = CREATED, revision: str = "") -> Json:
    """The pod as one of a workload."""
    uid = f"u-{name.partition('-')[0]}"
    owner = {"kind": kind, "name": name, "uid": uid, "controller": True}
    pod["metadata"] |= {"ownerReferences": [owner], "creationTimestamp": created}
    if revision:
        pod["metadata"]["labels"] = {"pod-template-hash": revision}
    return pod


def storm(count: int = 137, seconds: int = 20, why: str = "") -> list[Json]:
    """Pods of a Deployment that an agent refuses one after the other, the last one just now.

    Without a reason, no card fits them.
    """
    pods = []
    for number in range(count):
        # The cards' free amounts differ from refusal to refusal.
        text = f"gpu-turnstile: no card fits 50 cores: GPU-n1-0: {10 + number % 3} of 50 cores free"
        pod = refused(f"web-5d-{number}", (50, 4), "n1", f"gpu-turnstile: {why}" if why else text)
        at = NOW - timedelta(seconds=seconds - number * seconds // (count - 1))
        created = pod["status"]["startTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["metadata"]["annotations"] |= stamps("n1", int(at.timestamp()) - 5)
        pods.append(owned(pod, "ReplicaSet", "web-5d", created, revision="5d"))
    return pods


def plain(name: str, **limits: str) -> Json:
    """A pod that requests no GPU of ours, but *limits* of NVIDIA's domain."""
    obj = make_pod(name, phase="Running")
    resources = {"limits": {f"nvidia.com/{each}": count for each, count in limits.items()}}
    obj["spec"]["containers"] = [{"name": "c0", "image": "none", "resources": resources}]
    return obj


def event(about: Json, reason: str, message: str, source: str, *, at: str = "08:00:00") -> Json:
    """An Event about an object."""
    of = about["metadata"]
    namespace = of.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{of['name']}.{reason.lower()}", "namespace": namespace},
        "involvedObject": {"kind": about["kind"], "namespace": namespace, "name": of["name"]}
        | {"uid": of.get("uid", "")},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": source},
        "reportingComponent": source,
        **dict.fromkeys(("firstTimestamp", "lastTimestamp"), f"2025-11-22T{at}Z"),
    }


def node_with(name: str, *cards: Card) -> Json:
    """A node with these free cards."""
    free = (Amounts(100, 32),) * len(cards)
    return bare_node(name, encode_inventory(PublishedInventory(BLOCK, cards, free=free)))


def nodes() -> list[Json]:
    """Two nodes with cards, one without its agent, one without an inventory, one for others."""
    silent = make_node("n3", 1, allocatable="0")
    bare = bare_node("n4")
    bare["metadata"]["labels"] = {"nvidia.com/gpu.present": "true"}
    one = make_node("n1", 2, links={(0, 1): "NV4"})
    two = make_node("n2", 2, unhealthy=[1], models=["Tesla T4", "Tesla T4"])
    return [*(free(each) for each in (one, two, silent)), bare, bare_node("n5")]


def free(node: Json, cores: int = 100, blocks: int = 32) -> Json:
    """The node with other free amounts of each card, as its agent last reported them."""
    annotations = node["metadata"]["annotations"]
    annotations[NAMES.gpu_cards] = annotations[NAMES.gpu_cards].replace(
        '"freeCores":0,"freeBlocks":0', f'"freeCores":{cores},"freeBlocks":{blocks}'
    )
    return node


LATE = "no card fits 90 cores and 4 memory blocks: GPU-n1-0: 40 of 90 cores free"


def pods() -> list[Json]:
    return [
        running("train", (60, 16), "n1", 0),
        running("whole", (100, 8), "n1", 1),
        running("infer", (30, 4), "n2", 0),
        make_pod("hinted", (20, 4), node="n2", annotations={**stamps("n2"), **hint("0")}),
        make_pod("bound", (10, 2), node="n2", annotations=stamps("n2")),
        waiting("big", (60, 8), message="0/5 nodes are available: 5 Insufficient vcuda-core."),
        waiting("picky", (20, 4), annotations={NAMES.use_gpu_type: "h100"}),
        refused("late", (90, 4), "n1", LATE),
        plain("plain"),
        plain("hami", gpu="1", gpumem="4096"),
    ]


def denied() -> Json:
    """The Event of a ReplicaSet whose pods the webhook refuses."""
    replicas = {
        "kind": "ReplicaSet",
        "metadata": {"name": "web-5d", "namespace": "default", "uid": "u-web"},
    }
    text = 'admission webhook "pods.gpu-turnstile.io" denied the request: 150 is not whole'
    return event(replicas, "FailedCreate", text, "replicaset-controller", at="08:57:00")


def events() -> list[Json]:
    late = next(each for each in pods() if each["metadata"]["name"] == "late")
    return [event(late, "GPURefused", LATE, "gpu-turnstile"), denied()]
