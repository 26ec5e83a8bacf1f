"""A pod as its object shows it: read once at the border, frozen, without the rest. Pure.

The one reader for agent, extender and view. An object may be hostile where the API server does not
check it: annotations and counts. What does not parse counts as not said, and is a fault for the
log; what the API server guarantees (metadata, types of the spec) is relied upon.
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
from contract.reusable import NO_ROOM, find_leftover_conflicts, most_at_once
from contract.stamps import OrderStamp, decode_time
from contract.wishes import NO_WISHES, Wishes, read_wishes
from placement.capacity import CardNeed, need_of
from placement.errors import NoPlacement

MOST_REMEMBERED = 32
"""Containers of a pod that is remembered for long: one with thousands takes megabytes."""

_MIRROR, _STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
_TERMINAL = frozenset({"Succeeded", "Failed"})
_NOTHING: Mapping[str, Any] = {}
_PLAIN = frozenset({str, type(None)})

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class PodId(NamedTuple):
    """Which pod: a name can come back, a UID cannot.

    The UID is empty only for a pod that the kubelet's record shows and the API has not.
    A tuple, because pods are looked up and compared by the thousand in every call.
    """

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> Key:
        """Namespace and name, which is all that PodResources tells."""
        return self.namespace, self.name

    def __str__(self) -> str:
        """Write as ``kubectl`` users do."""
        return f"{self.namespace}/{self.name}"


class AdmissionRank(NamedTuple):
    """Order in which pods of a node are expected to be admitted; ties end with the UID.

    Attributes:
        time_ns: predicate time, else the best other time known, Unix nanoseconds.
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
    """What is known of a pod.

    Attributes:
        id: which pod.
        demand: its GPU containers in the kubelet's order of admission.
        rank: where it stands in the order of admission, as far as can be told.
        node: where it is bound; empty while it is not.
        terminal: it has succeeded or failed; the kubelet will not admit it any more.
        running: the kubelet has said that it runs.
        annotated: what its allocation annotation says, by container name; of containers that ask
            for just that. The agent compares it with what is to be written, and never reads it as
            knowledge of who holds what.
        wishes: what its author wishes of the cards.
        chosen: card indices that a scheduler chose, by container name; what the
            agent itself wrote there, with the allocation, is no choice.
        runtime_uid: the UID by which the container runtime knows it; the API shows a static pod
            under another.
        mains: names of all its containers, those that ask for no GPU too; empty if not known.
        sidecars: names of all its restartable init containers.
        faults: what did not parse (stamps, allocations, wishes), for the log; never read as a zero.
        errors: what is wrong with the request itself: limits and wishes.
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
    faults: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write as ``kubectl`` users do."""
        return str(self.id)

    @property
    def pod_class(self) -> "PodClass":
        """All that decisions about nodes depend on; pods of one class share the object."""
        few = len(self.demand.containers) <= MOST_REMEMBERED
        return (class_of if few else _class_of_many)(self.demand, self.wishes)


# --- reading ----------------------------------------------------------------------------


def read_gpu_pod(obj: Mapping[str, Any], names: Names) -> PodInfo | None:
    """Read a pod object; ``None`` for one that asks for no GPU, as most do."""
    demand, errors = _read_demand(obj.get("spec") or _NOTHING, names)
    return _read(obj, names, demand, errors) if demand else None


def read_pod(obj: Mapping[str, Any], names: Names) -> PodInfo:
    """Read a pod object, also of a pod that asks for no GPU."""
    return _read(obj, names, *_read_demand(obj.get("spec") or _NOTHING, names))


_Demand: TypeAlias = tuple[PodDemand, tuple[FieldError, ...]]


def _read_demand(spec: Mapping[str, Any], names: Names) -> _Demand:
    """Read what a pod asks for; most have one container, and ask for what others ask for."""
    listed = spec.get("containers")
    if not isinstance(listed, list) or len(listed) != 1 or spec.get("initContainers"):
        return read_pod_demand(spec, names)
    container = listed[0]
    resources = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return read_pod_demand(spec, names)
    limits, requests = resources.get("limits") or _NOTHING, resources.get("requests") or _NOTHING
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return read_pod_demand(spec, names)
    core, memory, name = names.core, names.memory, container.get("name")
    counts = limits.get(core), limits.get(memory), requests.get(core), requests.get(memory)
    if type(name) is str and _PLAIN.issuperset(map(type, counts)):
        return _demand_of(name, counts, names)
    return read_pod_demand(spec, names)


@lru_cache(maxsize=4096)
def _demand_of(name: str, counts: tuple[str | None, ...], names: Names) -> _Demand:
    keys = (names.core, names.memory)
    limits, requests = (
        {key: count for key, count in zip(keys, pair, strict=True) if count is not None}
        for pair in (counts[:2], counts[2:])
    )
    container = {"name": name, "resources": {"limits": limits, "requests": requests}}
    return read_pod_demand({"containers": [container]}, names)


def _read(
    obj: Mapping[str, Any], names: Names, demand: PodDemand, errors: tuple[FieldError, ...]
) -> PodInfo:
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or _NOTHING
    uid, faults = metadata.get("uid", ""), list[str]()
    rank = _rank(metadata, annotations, names, faults)
    phase = (obj.get("status") or {}).get("phase")
    written = read_allocations(annotations, names, faults)
    annotated = valid_allocations(written, demand, names, faults) if written else _NOTHING
    wishes, wrong = read_wishes(annotations, names)
    faults += map(str, wrong)
    mains, sidecars = [], []
    for listed, _, container in walk_containers(spec):
        name = container.get("name")
        if listed == "containers":
            mains.append(name if isinstance(name, str) else "")
        elif container.get("restartPolicy") == "Always":
            sidecars.append(name if isinstance(name, str) else "")
    demand, all_mains, all_sidecars = _shared(demand, frozenset(mains), frozenset(sidecars))
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
        # The API server lets nobody but a kubelet make a mirror pod.
        runtime_uid=annotations.get(_STATIC_UID, uid) if _MIRROR in annotations else uid,
        mains=all_mains,
        sidecars=all_sidecars,
        faults=tuple(faults),
        errors=tuple(map(str, (*errors, *wrong))),
    )


_Parts: TypeAlias = tuple[PodDemand, frozenset[str], frozenset[str]]


def _shared(demand: PodDemand, mains: frozenset[str], sidecars: frozenset[str]) -> _Parts:
    """Return one object for equal ones: there are many pods and few kinds of them."""
    few = max(len(mains) + len(sidecars), len(demand.containers)) <= MOST_REMEMBERED
    return _remembered(demand, mains, sidecars) if few else (demand, mains, sidecars)


@lru_cache(maxsize=4096)
def _remembered(demand: PodDemand, mains: frozenset[str], sidecars: frozenset[str]) -> _Parts:
    return demand, mains, sidecars


def _rank(
    metadata: Mapping[str, Any], annotations: Mapping[str, str], names: Names, faults: list[str]
) -> AdmissionRank:
    created = _unix_ns(metadata.get("creationTimestamp"))
    bound, bound_ns = _stamp(annotations.get(names.bind_order), faults)
    admitted, admitted_ns = _stamp(annotations.get(names.admission_order), faults)
    predicate = None if bound else annotations.get(names.predicate_time)
    # The best time known stands in for a missing stamp, so that pods with and without stamps are
    # in one order.
    time_ns = bound_ns or _read_time(decode_time, predicate, faults) or admitted_ns or created
    return AdmissionRank(time_ns, bound, admitted, created, metadata.get("uid", ""))


def _stamp(text: str | None, faults: list[str]) -> tuple[str, int]:
    """Return an order stamp and its time; nothing of one that is none."""
    time_ns = _read_time(lambda stamp: OrderStamp.decode(stamp).time_ns, text, faults)
    return (text or "", time_ns) if time_ns else ("", 0)


def _read_time(decode: Callable[[str], int], text: str | None, faults: list[str]) -> int:
    """Return a time; 0 of what is none, as no stamp has."""
    try:
        return 0 if text is None else decode(text)
    except ContractError as error:
        faults.append(str(error))
        return 0


def _unix_ns(rfc3339: str | None) -> int:
    """Read a creation time; whole seconds are all that Kubernetes keeps."""
    if not rfc3339:
        return 0
    return int(datetime.fromisoformat(rfc3339).timestamp()) * 1_000_000_000


# --- classes ----------------------------------------------------------------------------


class PodClass(NamedTuple):
    """All that a decision about nodes depends on; equal for equal pods.

    What follows from the first three is worked out once, not for every node.

    Attributes:
        kinds: of each container, in the kubelet's order of admission.
        needs: of each container, in the same order.
        wishes: of the pod's author.
        problem: why no node can ever serve it; empty when one may.
        shares: how many containers share a card.
        most_cards: the container with the most cards.
        asked: what the whole pod has when it has most.
    """

    kinds: tuple[ContainerKind, ...]
    needs: tuple[CardNeed, ...]
    wishes: Wishes
    problem: str = ""
    shares: int = 0
    most_cards: CardNeed | None = None
    asked: Amounts = NOTHING

    def __hash__(self) -> int:
        """Return the same for equal classes, at once: it is asked for every node."""
        return hash(self.asked)


@lru_cache(maxsize=4096)
def class_of(demand: PodDemand, wishes: Wishes) -> PodClass:
    """Return the class of a pod."""
    if wishes.core_limit is not None:
        wishes = replace(wishes, core_limit=None)  # says nothing of where
    try:
        needs = tuple([need_of(each.demand) for each in demand.containers])
    except NoPlacement as error:
        return PodClass((), (), wishes, str(error))
    for container, conflict in find_leftover_conflicts(demand.containers):
        if conflict.rule == NO_ROOM:  # by luck the kubelet might hand on what is not split
            return PodClass((), (), wishes, f"container {container.name}: {conflict.detail}")
    return PodClass(
        tuple([each.kind for each in demand.containers]),
        needs,
        wishes,
        "",
        sum(need.demand.is_share for need in needs),
        max(needs, key=lambda need: need.demand.cards),
        Amounts(*(most_at_once(demand, each) for each in RESOURCES)),
    )


_class_of_many = lru_cache(maxsize=4)(class_of.__wrapped__)
