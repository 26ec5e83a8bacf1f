"""Which container a call of the kubelet is for. Pure.

The kubelet admits one pod at a time, its containers in order (K1), and lists a pod when its
admission begins (K3). So the call is for a pod that is listed only since the last call: such a
newcomer proves that all admissions before it have ended. Without one it is for the pod of the last
call (R3, :class:`agent.allocator.turn.Turn`). Within the pod it is for the first container that
lacks something of what it asks for (R4, :func:`next_container`).

:func:`resolve` decides. The evidence is ``witness`` where only one container can be asking, and it
is sure which pod that is; else ``order``: the likeliest of several. The rules are in
docs/architecture.md, the facts in docs/kubelet-facts.md.
"""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace

from agent.allocator.model.containers import ContainerRef
from agent.allocator.record import Record
from agent.allocator.recorded_pod import RecordedPod
from agent.allocator.turn import Turn
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of
from placement.pods import PodId, PodInfo


@dataclass(frozen=True, slots=True)
class Request:
    """What a call tells about its container.

    Attributes:
        resource: the resource that is asked for.
        size: how many places of it.
        owner: the pod whose init container's places the call names (K7); ``None`` where it names
            none.
    """

    resource: Resource
    size: int
    owner: PodId | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The container that is asking, and the evidence.

    Attributes:
        pod: its pod.
        container: what it asks for.
        view: what the API shows of the pod; ``None`` where only the kubelet knows it.
        evidence: ``witness`` or ``order``.
        rivals: the other containers that may be asking as well, the likeliest first.
    """

    pod: PodId
    container: ContainerDemand
    view: PodInfo | None
    evidence: Evidence
    rivals: tuple["Resolution", ...] = field(default=(), compare=False)

    @property
    def ref(self) -> ContainerRef:
        """The container."""
        return ContainerRef(self.pod, self.container.name)


def resolve(
    request: Request, record: Record, turn: Turn, *, last_resort: bool = True
) -> Resolution:
    """Return the container that is asking.

    Args:
        request: what the call says.
        record: who holds what.
        turn: what the last call has left.
        last_resort: also try pods that were listed before the last call and did not make it. Their
            admission has ended if all is known, which it may not be.

    Raises:
        ResolutionError: no pod can be asking this; the message says which are waiting.
    """
    tiers = _tiers(record, turn)
    in_order = [(tiers.new, tiers.new_is_certain), (tiers.last, tiers.last_is_certain)]
    if last_resort:
        in_order += [(tiers.unpassed, False), (tiers.old, False)]
    for tier, certain in in_order:
        found = [
            (pod, container)
            for pod in tier
            if request.owner in {None, pod.id}
            and (container := next_container(request, pod)) is not None
        ]
        known = [one for one in found if one[0].view is not None]
        candidates = known or found
        if candidates:
            candidates.sort(key=lambda one: _order(one[0], record, turn), reverse=record.listing)
            witness = certain and len(found) == 1 and bool(known) and known[0][0].sure
            # A pod counted as listed before may be a new one of the same name.
            witness = witness and all(
                next_container(request, one) is None for one in tiers.unpassed
            )
            evidence = Evidence.WITNESS if witness else Evidence.ORDER
            first, *rivals = (
                Resolution(pod.id, container, pod.view, evidence) for pod, container in candidates
            )
            return replace(first, rivals=tuple(rivals))
    raise ResolutionError(_nothing_fits(request, record))


@dataclass(frozen=True, slots=True)
class _Tiers:
    """The pods that may be asking, the likeliest first (R3).

    Attributes:
        new: newcomers; without ``List``, which alone tells them, every pod.
        last: the pod of the last call.
        unpassed: the other pods of which it is not known that their admission has ended.
        old: all other pods, those of *unpassed* included.
        new_is_certain: of *new*, a sole candidate is certain.
        last_is_certain: of *last*, a sole candidate is certain.
    """

    new: Sequence[RecordedPod]
    last: Sequence[RecordedPod] = ()
    unpassed: Sequence[RecordedPod] = ()
    old: Sequence[RecordedPod] = ()
    new_is_certain: bool = False
    last_is_certain: bool = False


def _tiers(record: Record, turn: Turn) -> _Tiers:
    if not record.listing:
        return _Tiers([each for each in record.unsettled if each.may_ask])
    new, last, old = list[RecordedPod](), list[RecordedPod](), list[RecordedPod]()
    for each in record.listed_unsettled:
        if each.may_ask and turn.is_new(each, record):
            new.append(each)
        elif each.may_ask:
            is_last = turn.is_asker(each) and each.kubelet_id not in turn.passed
            (last if is_last else old).append(each)
    untried = [each for each in new if each.kubelet_id not in turn.tried] or new
    # The last asker is certain if no newcomer lacks anything, and it was no guess or is shown.
    confirmed = not turn.guessed or all(each.shows for each in last)
    return _Tiers(
        untried,
        last,
        [each for each in old if each.kubelet_id not in turn.passed | turn.tried],
        old,
        new_is_certain=not any(each.kubelet_id in turn.tried for each in new),
        last_is_certain=confirmed and not any(each.lacks for each in new),
    )


def _order(pod: RecordedPod, record: Record, turn: Turn) -> tuple[object, ...]:
    """Return a sort key: with ``List``, sorted in reverse, the newest is the likeliest.

    Without it that is the last asker, then who has something, then the oldest.
    """
    if record.listing:
        return turn.is_asker(pod) and bool(pod.held), pod.rank, pod.id
    return not turn.is_asker(pod), not pod.held, pod.rank, pod.id


def next_container(request: Request, pod: RecordedPod) -> ContainerDemand | None:
    """Return the first container of *pod* that lacks something, if it asks for just this (R4)."""
    if pod.view is None:
        return _next_of_unknown(request, pod)
    container = pod.next
    if container is None or count_of(container.demand, request.resource) != request.size:
        return None
    return None if pod.held.get(container.name, {}).get(request.resource) else container


def _next_of_unknown(request: Request, pod: RecordedPod) -> ContainerDemand | None:
    """Return the likeliest container of a pod that only the kubelet knows.

    It is one that has another resource and not this one, unless it has whole cards, which may be
    asked for without memory. Else it is the first without this one, from the last container on
    that has something. The size is not compared: only the API tells what a container asks for.
    """
    names = [one.name for one in pod.listed.containers] if pod.listed is not None else []
    begun = [
        name
        for name, places in pod.held.items()
        if any(places.get(one) for one in (request.resource.other,))
        and not places.get(request.resource)
        and len(places.get(Resource.CORE, ())) < CORES_PER_CARD
    ]
    served = [at for at, name in enumerate(names) if pod.held.get(name)]
    coming = [
        name
        for name in names[served[-1] if served else 0 :]
        if not pod.held.get(name, {}).get(request.resource)
    ]
    name = next(iter((*begun, *coming)), None)
    if name is None:
        return None
    held = {**pod.held.get(name, {}), request.resource: range(request.size)}
    return assumed_container(name, held)


def assumed_container(name: str, held: Mapping[Resource, Sized]) -> ContainerDemand:
    """Return what a container must ask for, of a pod that only the kubelet knows, by what it has.

    A share has cores and memory: where one is not known yet, one unit of it is assumed.
    """
    counts = {each: len(held.get(each, ())) for each in Resource}
    counts[Resource.CORE] = cores = max(counts[Resource.CORE], 1)
    counts[Resource.MEMORY] = counts[Resource.MEMORY] or int(cores < CORES_PER_CARD)
    return ContainerDemand(name, ContainerKind.MAIN, 0, Demand(*counts.values()))


_MOST_NAMED = 5


def _nothing_fits(request: Request, record: Record) -> str:
    """Return what was asked and what was waiting."""
    texts = sorted(
        f"{pod.id} container {each.name} (cores {each.demand.cores}, memory {each.demand.memory})"
        for pod in (record.listed_unsettled if record.listing else record.unsettled)
        if pod.may_ask and (each := pod.next) is not None
    )
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    names = "; ".join(texts[:_MOST_NAMED]) + more if texts else "none"
    return (
        f"{request.size} places of {request.resource} were asked for, "
        f"but no waiting container asks for that; waiting: {names}"
    )
