"""Workloads of Kueue, and the cards that an admission check promises to their pods. Pure.

Kueue reserves quota for a Workload, asks the AdmissionChecks of its queue, and admits it once all
are ``Ready``; its pods may not exist before. So a promise is in the message of the check's state,
in the status of the Workload: who may write that decides about quotas, too. Every pod gets an
annotation that names workload and pod set (``podSetUpdates``).
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from contract.names import Names
from contract.pod_annotations import write_choice
from placement.cluster.nominations import CardPromise, Nomination, timestamp
from placement.cluster.selectors import NodeSelection, read_selection
from placement.pods import PodInfo, read_gpu_pod

CONTROLLER = "gpu-turnstile.io/cards"
"""``controllerName`` of our AdmissionChecks."""

NO_ROOM = "no room on cards: "
"""How the message of a check begins whose workload waits without quota until it finds cards."""

API = "/apis/kueue.x-k8s.io/v1beta2"
_SLICE = "kueue.x-k8s.io/workload-slice-name"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods of a workload.

    Attributes:
        name: its name.
        count: how many pods have quota and have not succeeded: fewer than wanted if the workload is
            admitted in part.
        pod: one of its pods; ``None`` if they request no GPU.
        spec: the spec of its pods.
        flavors: the ResourceFlavors that were assigned.
        topology: whether Kueue has chosen nodes itself (topology-aware scheduling).
    """

    name: str
    count: int
    pod: PodInfo | None
    spec: Json
    flavors: tuple[str, ...] = ()
    topology: bool = False

    def selection(self, flavors: Mapping[str, "Flavor"]) -> NodeSelection:
        """Return which nodes its pods may get, with those of its flavors that are known."""
        known = [flavors[each] for each in self.flavors if each in flavors]
        labels = dict(self.spec.get("nodeSelector") or {})
        tolerations = list(self.spec.get("tolerations") or ())
        for each in known:
            labels |= each.labels
            tolerations += each.tolerations
        return read_selection({**self.spec, "nodeSelector": labels, "tolerations": tolerations})


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a ResourceFlavor adds to pods: node labels and tolerations."""

    labels: Mapping[str, str]
    tolerations: tuple[Json, ...]


def read_flavor(obj: Json) -> Flavor:
    """Read a ResourceFlavor."""
    spec = obj.get("spec") or {}
    return Flavor(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        version: its resourceVersion.
        chain: its name, or that of the first workload of an elastic job.
        priority: its priority.
        reserved: whether it has quota, and is neither evicted, deactivated nor finished.
        queued: whether it has none, or is being evicted, and may be admitted later.
        created: when it was created, Unix seconds.
        since: when quota was reserved, Unix seconds.
        pod_sets: its pod sets.
        checks: the states of its admission checks, as in its status.
        conditions: its conditions, as in its status.
    """

    namespace: str
    name: str
    uid: str
    version: str
    chain: str
    priority: int
    reserved: bool
    queued: bool
    created: float
    since: float
    pod_sets: tuple[PodSet, ...]
    checks: tuple[Json, ...]
    conditions: tuple[Json, ...]

    def __str__(self) -> str:
        """Return ``namespace/name``, as ``kubectl`` users write it."""
        return f"{self.namespace}/{self.name}"

    def key(self, pod_set: str) -> str:
        """Return what names the pod set in :class:`scheduler.nominations.Nominations`."""
        return f"{self.namespace}/{self.annotation(pod_set)}"

    def annotation(self, pod_set: str) -> str:
        """Return the annotation ``gpu-promise`` of the pods of a pod set."""
        return f"{self.chain}/{pod_set}"

    def shape(self, flavors: Mapping[str, Flavor]) -> Hashable:
        """Return what decides whether its pods find cards: equal workloads have equal shapes."""
        return tuple(
            (
                each.count,
                each.pod.pod_class,
                each.pod.wishes,
                each.selection(flavors),
                each.topology,
            )
            for each in self.pod_sets
            if each.pod is not None
        )

    def promises(self) -> tuple[float, Mapping[str, Sequence[CardPromise]]]:
        """Return until when cards are kept, Unix seconds, and which for each pod set.

        None without quota, and of what cannot be read.
        """
        for each in self.checks if self.reserved else ():
            if each.get("state") in ("Ready", "Pending"):
                found = _decode(str(each.get("message") or ""), self)
                if found is not None:
                    return found
        return 0.0, {}


def _decode(
    text: str, workload: Workload
) -> tuple[float, Mapping[str, Sequence[CardPromise]]] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
        until = datetime.fromisoformat(found["cardsKeptUntil"]).timestamp()
        promises = {}
        for pod_set in workload.pod_sets:
            if pod_set.pod is None:
                continue
            names = [each.name for each in pod_set.pod.demand.containers]
            promises[pod_set.name] = [
                CardPromise(pod_set.pod, Nomination(str(node), _cards(names, pod), (), int(until)))
                for node, pods in found["cards"].get(pod_set.name, {}).items()
                for pod in pods
            ][: pod_set.count]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return until, promises


def _cards(names: Sequence[str], text: str) -> Mapping[str, tuple[int, ...]]:
    """Read the cards of one pod: of each container the indices, such as ``0/1,2``."""
    parts = [tuple(map(int, each.split(","))) for each in text.split("/")]
    return dict(zip(names, parts, strict=True))


def write_promises(promises: Mapping[str, Sequence[CardPromise]], until: float) -> str:
    """Return the message of a check that keeps cards, at most 32 KiB for hundreds of pods."""
    cards: dict[str, dict[str, list[str]]] = {}
    for pod_set, kept in promises.items():
        for each in kept:
            chosen = each.nomination.cards
            pod = "/".join(write_choice(chosen[one.name]) for one in each.pod.demand.containers)
            cards.setdefault(pod_set, {}).setdefault(each.nomination.node, []).append(pod)
    document = {"cardsKeptUntil": timestamp(until), "cards": cards}
    return json.dumps(document, separators=(",", ":"))


def read_workload(obj: Json, names: Names) -> Workload:
    """Read a Workload of ``kueue.x-k8s.io/v1beta2``."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    namespace, name = metadata["namespace"], metadata["name"]
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    reserved = _is_true(conditions, "QuotaReserved") and bool(status.get("admission"))
    over = any(_is_true(conditions, each) for each in ("Finished", "DeactivationTarget"))
    active = spec.get("active") is not False and not metadata.get("deletionTimestamp") and not over
    reserved = reserved and active and not _is_true(conditions, "Evicted")
    since = conditions.get("QuotaReserved", {}).get("lastTransitionTime")
    created = metadata.get("creationTimestamp")
    assigned = {
        each["name"]: each
        for each in (status.get("admission") or {}).get("podSetAssignments") or ()
    }
    done = {each["name"]: each["count"] for each in status.get("reclaimablePods") or ()}
    return Workload(
        namespace,
        name,
        metadata["uid"],
        str(metadata.get("resourceVersion", "")),
        (metadata.get("annotations") or {}).get(_SLICE) or name,
        spec.get("priority") or 0,
        reserved,
        active and not reserved,
        datetime.fromisoformat(created).timestamp() if created else 0.0,
        datetime.fromisoformat(since).timestamp() if since else 0.0,
        tuple(
            _read_pod_set(each, assigned.get(each["name"], {}), done, namespace, name, names)
            for each in spec.get("podSets") or ()
        ),
        tuple(status.get("admissionChecks") or ()),
        tuple(conditions.values()),
    )


def _read_pod_set(  # noqa: PLR0913, PLR0917 -- one pod set and its surroundings
    obj: Json, assigned: Json, done: Mapping[str, int], namespace: str, workload: str, names: Names
) -> PodSet:
    name, template = obj.get("name") or "main", obj.get("template") or {}
    metadata = {**(template.get("metadata") or {}), "namespace": namespace}
    metadata |= {"name": f"{workload}/{name}", "uid": ""}
    spec = template.get("spec") or {}
    count = assigned.get("count", obj.get("count", 1))
    return PodSet(
        name,
        max(count - done.get(name, 0), 0),
        read_gpu_pod({"metadata": metadata, "spec": spec}, names),
        spec,
        tuple(sorted(set((assigned.get("flavors") or {}).values()))),
        bool(assigned.get("topologyAssignment") or assigned.get("delayedTopologyRequest")),
    )


def _is_true(conditions: Mapping[str, Json], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"
