"""Reads pod objects into frozen values that have only what we need. Pure.

Agent, extender and view all use this reader. Annotations and counts may be hostile, because the
API server does not check them: values that do not parse count as absent, and are faults for the
log. What the API server guarantees (metadata, types of the spec) is relied upon.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple, TypeAlias

from contract.allocation import Allocation
from contract.demand import ContainerKind, PodDemand
from contract.errors import ContractError, FieldError
from contract.inventory import NOTHING, Amounts
from contract.names import Names
from contract.pod_annotations import read_allocations, read_choice, valid_allocations
from contract.requests import read_pod_demand, walk_containers
from contract.resource import RESOURCES
from contract.reusable import NO_ROOM, find_leftover_conflict, most_at_once
from contract.stamps import OrderStamp, decode_time
from contract.wishes import NO_WISHES, Wishes, read_wishes
from placement.capacity import CardNeed, need_of
from placement.errors import NoPlacement

MOST_REMEMBERED = 32
"""Most containers of a pod that is cached for long: one with thousands takes megabytes."""

_MIRROR, _STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
_TERMINAL = frozenset({"Succeeded", "Failed"})
_NOTHING: Mapping[str, Any] = {}
_PLAIN = frozenset({str, type(None)})

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class PodId(NamedTuple):
    """The identity of a pod: a name can be used again, a UID cannot.

    The UID is empty only for a pod that the kubelet lists and the API does not have.
    A tuple, because every call looks up and compares thousands of pods.
    """

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> Key:
        """Namespace and name: PodResources has no UID."""
        return self.namespace, self.name

    def __str__(self) -> str:
        """Return ``namespace/name``, as ``kubectl`` users write it."""
        return f"{self.namespace}/{self.name}"


class AdmissionRank(NamedTuple):
    """Sort key: the order in which pods of a node are expected to be admitted; the UID is last.

    Attributes:
        time_ns: predicate time, else the best other known time, Unix nanoseconds.
        bound: order stamp of the binding, empty if there is none.
        admitted: order stamp of the creation, empty if there is none.
        created_ns: creation time, Unix nanoseconds.
        uid: the pod's UID.
    """

    time_ns: int
    bound: str
    admitted: str
    created_ns: int
    uid: str


UNKNOWN_RANK = AdmissionRank(0, "", "", 0, "")


@dataclass(frozen=True, slots=True)
class PodInfo:
    """What its object shows of a pod.

    Attributes:
        id: namespace, name and UID.
        demand: its GPU containers in the kubelet's order of admission.
        rank: its expected rank in the order of admission.
        node: name of the node that it is bound to; empty if it is not bound.
        terminal: whether it has succeeded or failed; the kubelet will not admit it again.
        running: whether the kubelet has reported that it runs.
        annotated: its allocation annotation, by container name; only allocations that match the
            container's request. The agent compares it with the text to be written, and never uses
            it to find out who holds which devices.
        wishes: its author's wishes for cards.
        chosen: card indices that a scheduler chose, by container name; without those that the
            agent itself wrote with the allocation.
        runtime_uid: the pod's UID in the container runtime; the API shows another one for a static
            pod.
        mains: names of all its containers, also those without GPUs; empty if unknown.
        sidecars: names of all its restartable init containers.
        by_id: names of its containers by their ID in the container runtime, as far as the kubelet
            has reported them; only of pods with several GPU containers.
        faults: what did not parse (stamps, allocations, wishes), for the log; never read as 0.
        errors: what is wrong with its limits and wishes.
        promise: workload and pod set for which an admission check may keep cards; empty if none.
    """

    id: PodId
    demand: PodDemand
    rank: AdmissionRank = UNKNOWN_RANK
    node: str = ""
    terminal: bool = False
    running: bool = False
    annotated: Mapping[str, Allocation] = field(default_factory=dict)
    wishes: Wishes = NO_WISHES
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    runtime_uid: str = ""
    mains: frozenset[str] = frozenset()
    sidecars: frozenset[str] = frozenset()
    by_id: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    promise: str = ""

    def __str__(self) -> str:
        """Return ``namespace/name``, as ``kubectl`` users write it."""
        return str(self.id)

    @property
    def pod_class(self) -> "PodClass":
        """Everything that decisions about nodes depend on; pods of one class share the object."""
        few = len(self.demand.containers) <= MOST_REMEMBERED
        return (class_of if few else _class_of_many)(self.demand, self.wishes)


# --- reading ----------------------------------------------------------------------------


def read_gpu_pod(obj: Mapping[str, Any], names: Names) -> PodInfo | None:
    """Read a pod object; ``None`` if it requests no GPU, like most pods."""
    demand, errors = _read_demand(obj, names)
    return _read(obj, names, demand, errors) if demand else None


def read_pod(obj: Mapping[str, Any], names: Names) -> PodInfo:
    """Read a pod object, also of a pod that requests no GPU."""
    return _read(obj, names, *_read_demand(obj, names))


_Demand: TypeAlias = tuple[PodDemand, tuple[FieldError, ...]]


def _read_demand(obj: Mapping[str, Any], names: Names) -> _Demand:
    """Read a pod's request; those of pods with one container, the usual case, are cached."""
    spec = obj.get("spec") or _NOTHING
    listed = spec.get("containers")
    if not isinstance(listed, list) or len(listed) != 1 or spec.get("initContainers"):
        return read_pod_demand(obj, names)
    container = listed[0]
    resources = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return read_pod_demand(obj, names)
    limits, requests = resources.get("limits") or _NOTHING, resources.get("requests") or _NOTHING
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return read_pod_demand(obj, names)
    core, memory, name = names.core, names.memory, container.get("name")
    counts = limits.get(core), limits.get(memory), requests.get(core), requests.get(memory)
    annotations = obj["metadata"].get("annotations") or _NOTHING
    divided = names.gpu_cards_prefix in "\n".join(annotations)  # faster than one by one
    if type(name) is str and not divided and _PLAIN.issuperset(map(type, counts)):
        return _demand_of(name, counts, names)
    return read_pod_demand(obj, names)


@lru_cache(maxsize=4096)
def _demand_of(name: str, counts: tuple[str | None, ...], names: Names) -> _Demand:
    keys = (names.core, names.memory)
    limits, requests = (
        {key: count for key, count in zip(keys, pair, strict=True) if count is not None}
        for pair in (counts[:2], counts[2:])
    )
    container = {"name": name, "resources": {"limits": limits, "requests": requests}}
    return read_pod_demand({"spec": {"containers": [container]}}, names)


def _read_ids(status: Mapping[str, Any]) -> Mapping[str, str]:
    """Read the containers' names by their ID, which follows the runtime's name and ``://``."""
    return {
        str(each["containerID"]).rpartition("/")[2]: str(each.get("name"))
        for field in ("initContainerStatuses", "containerStatuses")
        for each in status.get(field) or ()
        if each.get("containerID")
    }


def _read(
    obj: Mapping[str, Any], names: Names, demand: PodDemand, errors: tuple[FieldError, ...]
) -> PodInfo:
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or _NOTHING
    uid, faults = metadata.get("uid", ""), list[str]()
    rank = _rank(metadata, annotations, names, faults)
    status = obj.get("status") or _NOTHING
    phase = status.get("phase")
    written = read_allocations(annotations, names, faults)
    annotated = valid_allocations(written, demand, names, faults) if written else _NOTHING
    wishes, wish_errors = read_wishes(annotations, names)
    faults += map(str, wish_errors)
    mains, sidecars = [], []
    for listed, _, container in walk_containers(spec):
        name = container.get("name")
        if listed == "containers":
            mains.append(name if isinstance(name, str) else "")
        elif container.get("restartPolicy") == "Always":
            sidecars.append(name if isinstance(name, str) else "")
    demand, all_mains, all_sidecars = _deduplicate(demand, frozenset(mains), frozenset(sidecars))
    return PodInfo(
        PodId(intern(metadata.get("namespace", "")), metadata.get("name", ""), uid),
        demand,
        rank,
        intern(spec.get("nodeName") or ""),
        terminal=phase in _TERMINAL,
        running=phase == "Running",
        annotated=annotated,
        wishes=wishes,
        chosen=read_choice(annotations, demand, written, names, faults) or _NOTHING,
        # The API server lets only a kubelet create a mirror pod.
        runtime_uid=annotations.get(_STATIC_UID, uid) if _MIRROR in annotations else uid,
        mains=all_mains,
        sidecars=all_sidecars,
        by_id=_read_ids(status) if len(demand.containers) > 1 else _NOTHING,
        faults=tuple(faults),
        errors=tuple(map(str, (*errors, *wish_errors))),
        promise=annotations.get(names.gpu_promise, ""),
    )


_Parts: TypeAlias = tuple[PodDemand, frozenset[str], frozenset[str]]


def _deduplicate(demand: PodDemand, mains: frozenset[str], sidecars: frozenset[str]) -> _Parts:
    """Return the same objects for equal pods, to save memory: many pods differ in name only."""
    few = max(len(mains) + len(sidecars), len(demand.containers)) <= MOST_REMEMBERED
    return _cached_parts(demand, mains, sidecars) if few else (demand, mains, sidecars)


@lru_cache(maxsize=4096)
def _cached_parts(demand: PodDemand, mains: frozenset[str], sidecars: frozenset[str]) -> _Parts:
    return demand, mains, sidecars


def _rank(
    metadata: Mapping[str, Any], annotations: Mapping[str, str], names: Names, faults: list[str]
) -> AdmissionRank:
    created = _unix_ns(metadata.get("creationTimestamp"))
    bound, bound_ns = _stamp(annotations.get(names.bind_order), faults)
    admitted, admitted_ns = _stamp(annotations.get(names.admission_order), faults)
    predicate = None if bound else annotations.get(names.predicate_time)
    # The best known time replaces a missing stamp, so that pods with and without stamps can be
    # sorted together.
    time_ns = bound_ns or _read_time(decode_time, predicate, faults) or admitted_ns or created
    return AdmissionRank(time_ns, bound, admitted, created, metadata.get("uid", ""))


def _stamp(text: str | None, faults: list[str]) -> tuple[str, int]:
    """Return an order stamp and its time; an empty one and 0 if it is missing or invalid."""
    time_ns = _read_time(lambda stamp: OrderStamp.decode(stamp).time_ns, text, faults)
    return (text or "", time_ns) if time_ns else ("", 0)


def _read_time(decode: Callable[[str], int], text: str | None, faults: list[str]) -> int:
    """Return a time; 0, which no valid stamp has, if it is missing or invalid."""
    try:
        return 0 if text is None else decode(text)
    except ContractError as error:
        faults.append(str(error))
        return 0


def _unix_ns(rfc3339: str | None) -> int:
    """Read a creation time, which Kubernetes stores in whole seconds."""
    if not rfc3339:
        return 0
    return int(datetime.fromisoformat(rfc3339).timestamp()) * 1_000_000_000


# --- classes ----------------------------------------------------------------------------


class PodClass(NamedTuple):
    """Everything about a pod that a decision about nodes depends on; equal pods have equal classes.

    The other attributes follow from the first three, and are computed once, not for every node.

    Attributes:
        kinds: the kind of each container, in the kubelet's order of admission.
        needs: the need of each container, in the same order.
        wishes: the author's wishes.
        problem: why no node can ever serve the pod; empty if a node may.
        shares: number of cards that containers share, each counted for itself.
        most_cards: the need of the container with the most cards.
        peak: the most that the whole pod holds at one time.
    """

    kinds: tuple[ContainerKind, ...]
    needs: tuple[CardNeed, ...]
    wishes: Wishes
    problem: str = ""
    shares: int = 0
    most_cards: CardNeed | None = None
    peak: Amounts = NOTHING

    def __hash__(self) -> int:
        """Return a hash that is cheap: every check of a node computes it."""
        return hash(self.peak)


@lru_cache(maxsize=4096)
def class_of(demand: PodDemand, wishes: Wishes) -> PodClass:
    """Return the class of a pod."""
    if wishes.core_limit is not None or wishes.processes > 1:  # do not affect the placement
        wishes = replace(wishes, core_limit=None, processes=1)
    try:
        needs = tuple([need_of(each.demand) for each in demand.containers])
    except NoPlacement as error:
        return PodClass((), (), wishes, str(error))
    conflict = find_leftover_conflict(demand.containers)
    # With a SPLIT the kubelet may, by luck, reuse devices well.
    if conflict and conflict.rule == NO_ROOM:
        problem = f"container {conflict.container.name}: {conflict.detail}"
        return PodClass((), (), wishes, problem)
    return PodClass(
        tuple([each.kind for each in demand.containers]),
        needs,
        wishes,
        "",
        sum(need.demand.cards for need in needs if need.demand.is_share),
        max(needs, key=lambda need: need.demand.cards),
        Amounts(*(most_at_once(demand, each) for each in RESOURCES)),
    )


_class_of_many = lru_cache(maxsize=4)(class_of.__wrapped__)
