"""Objects of Kueue 0.19 as it writes them (``kueue.x-k8s.io/v1beta2``)."""

from typing import Any

from placement.cluster.nominations import CardPromise, Nomination
from placement.cluster.workloads import write_promises
from placement.pods import read_gpu_pod
from tests.gates.kueue import template
from tests.placement.cluster.builders import NAMES, Json, make_pod

AT, LATER = "2025-11-22T08:30:00Z", "2025-11-22T08:31:00Z"
API_VERSION = "kueue.x-k8s.io/v1beta2"
QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for tencent.com/vcuda-core "
    "in flavor a100, 60 more needed"
)
NO_ROOM = "no room on cards: cards for 4 of 6 pods: 1 node: no card has 60 cores and 4 blocks free"
RETRIED = f'Evicted due to AdmissionCheck in Retry state: "cards" ({NO_ROOM})'
INACTIVE = "Can't admit new workloads: references inactive AdmissionCheck(s): cards."


def condition(kind: str, status: str, message: str, reason: str = "Pending") -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": AT,
        "observedGeneration": 1,
    }


NO_QUOTA = condition("QuotaReserved", "False", QUOTA)
RESERVED = condition("QuotaReserved", "True", "Quota reserved in ClusterQueue gpus")
ADMITTED = condition("Admitted", "True", "The workload is admitted", "Admitted")


def check(state: str, message: str = "", **more: Any) -> Json:
    return {"name": "cards", "state": state, "message": message, "lastTransitionTime": AT, **more}


def promised(node: str = "n1", card: int = 0, until: float = 1_763_802_300.0) -> str:
    """The message of a check that keeps a card for one pod."""
    pod = read_gpu_pod(make_pod("a", (60, 4)), NAMES)
    assert pod is not None
    kept = CardPromise(pod, Nomination(node, {"c0": (card,)}, (), int(until)))
    return write_promises({"main": [kept]}, until)


def workload(
    *conditions: Json, owner: Json | None = None, active: bool = True, **status: Any
) -> Json:
    """A Workload of six pods; with the condition ``QuotaReserved`` it has an admission."""
    if RESERVED in conditions:
        assignment = {"name": "main", "count": 6, "flavors": {"tencent.com/vcuda-core": "a100"}}
        status["admission"] = {"clusterQueue": "gpus", "podSetAssignments": [assignment]}
    uid = owner["metadata"]["uid"] if owner else "u-train"
    of = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {
            "name": "job-train-1f2e3",
            "namespace": "default",
            "uid": "w-train",
            "resourceVersion": "7",
            "creationTimestamp": AT,
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [of],
        },
        "spec": {
            "active": active,
            "queueName": "team-a",
            "priority": 0,
            "podSets": [{"name": "main", "count": 6, "template": template((60, 4))}],
        },
        "status": {"conditions": [*conditions], **status},
    }


def gated(pod: Json) -> Json:
    """The pod as Kueue's webhook leaves it until its Workload is admitted."""
    pod["metadata"]["labels"] = {
        "kueue.x-k8s.io/queue-name": "team-a",
        "kueue.x-k8s.io/managed": "true",
    }
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
    ]
    return pod


LOCAL_QUEUE: Json = {
    "apiVersion": API_VERSION,
    "kind": "LocalQueue",
    "metadata": {"name": "team-a", "namespace": "default"},
    "spec": {"clusterQueue": "gpus"},
}


def cluster_queue(*conditions: Json) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": "gpus"},
        "status": {"conditions": [*conditions]},
    }
