"""Which container is asking. Pure.

The kubelet admits one pod at a time, its containers in order (K1), and lists a pod when its
admission begins (K3). So the asker is a pod that is listed only since the last call: such a
newcomer proves that all admissions before it have ended. Without one it is the pod of the last call
(R3, :class:`Turn`). Within the pod it is the first container that lacks something of what it asks
for (R4, :func:`waiting`).

The evidence is ``witness`` where only one container can be asking, and it is sure which pod that
is; else ``order``: the likeliest of several. The rules are in docs/architecture.md, the facts in
docs/kubelet-facts.md.
"""

from collections.abc import Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.record import Record
from agent.allocator.recorded_pod import RecordedPod, Shape
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of


@dataclass(frozen=True, slots=True)
class Request:
    """What a call reveals about its container.

    Attributes:
        resource: which resource is asked for.
        size: how many places.
        owner: the pod whose init container's places it names (K7).
    """

    resource: Resource
    size: int
    owner: PodId | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which container is asking, and by which evidence.

    Attributes:
        pod: its pod.
        container: what it asks for.
        view: what the API shows of the pod; ``None`` where only the kubelet knows it.
        evidence: how it was settled.
        rivals: containers of its tier that may be asking as well, the likeliest first.
    """

    pod: PodId
    container: ContainerDemand
    view: PodView | None
    evidence: Evidence
    rivals: tuple["Resolution", ...] = field(default=(), compare=False)

    @property
    def ref(self) -> ContainerRef:
        """The container."""
        return ContainerRef(self.pod, self.container.name)


@dataclass(frozen=True, slots=True)
class Turn:
    """What is kept from call to call. ``List`` tells no UIDs: what it showed is compared by shape.

    Attributes:
        asker: the pod of the last call, by the kubelet's UID; ``None`` before the first call to
            this kubelet.
        listed: how often ``List`` showed each shape then; ``None`` where that is not known.
        guessed: that pod was guessed; once ``List`` shows what it was given, the guess was right.
        passed: pods that lacked something while another was asking, or when a call was refused:
            their admission has ended.
        before: what the last call for another pod had left: valid again if the guess was wrong.
        tried: pods that were guessed since then, wrongly.
    """

    asker: PodId | None = None
    listed: Mapping[Shape, int] | None = None
    guessed: bool = True
    passed: frozenset[PodId] = frozenset()
    before: "Turn | None" = None
    tried: frozenset[PodId] = frozenset()

    def after(self, record: Record, asker: PodId, *, guessed: bool) -> "Turn":
        """Return what a call of *asker* leaves for the next."""
        found = record.pod(asker)
        me = found.kubelet_id if found is not None else asker
        if not record.listing:  # a pod that is guessed without List may not be listed yet
            return replace(self, asker=me, guessed=True, before=None)
        others = [each for each in record.listed_unsettled if each.id != asker]
        return Turn(
            me,
            record.shapes,
            guessed,
            frozenset(
                each.kubelet_id for each in others if each.lacks or each.kubelet_id in self.passed
            ),
            self.before if me == self.asker else replace(self, before=None),
            self.tried if me == self.asker else frozenset(),
        )

    def refused(self, record: Record) -> "Turn":
        """Return what a refusal leaves: every pod listed that lacks something is rejected."""
        if not record.listing:
            return self
        rejected = (
            each.kubelet_id
            for each in record.listed_unsettled
            if each.lacks or each.kubelet_id in self.passed
        )
        return replace(self, listed=record.shapes, guessed=True, passed=frozenset(rejected))

    def disproved(self) -> "Turn":
        """Return the turn before the pod of the last call was guessed: it was not that pod's."""
        if not self.guessed or self.asker is None:
            return self
        if self.before is None:  # it was guessed without List, and may come yet
            return replace(self, asker=None)
        return replace(self.before, tried=self.before.tried | {self.asker})

    def without_departed(self, record: Record, seen: AbstractSet[str]) -> "Turn":
        """Return this without what has left ``List``: a name that comes back is another pod's.

        Args:
            record: who holds what, by a look without a call too.
            seen: the kubelet's UIDs of the pods that this kubelet has listed.
        """
        if not record.listing:
            return self
        asker, listed, now = self.asker, self.listed, record.shapes
        if asker is not None and asker.uid in seen and not record.lists(asker.key):
            asker = None
        if listed is not None and not listed.items() <= now.items():
            listed = {shape: min(n, now.get(shape, 0)) for shape, n in listed.items()}
        return replace(self, asker=asker, listed=listed)

    def is_asker(self, pod: RecordedPod) -> bool:
        """Return whether a pod is that of the last call, which may be known by its name alone."""
        asker = self.asker
        return asker is not None and asker.key == pod.id.key and asker.uid in {"", pod.uid}

    def is_new(self, pod: RecordedPod, record: Record) -> bool:
        """Return whether a pod is listed only since the last call: its shape is there more now.

        Where nothing is known of the last call, every pod is new.
        """
        if self.listed is None or pod.shape not in self.listed:
            return True
        grown = record.shapes.get(pod.shape, 0) - self.listed[pod.shape]
        if pod.shows or grown <= 0:
            return False
        # Of several that show nothing it is the newest: the others were there before.
        alike = (each for each in record.listed_unsettled if each.shape == pod.shape)
        known = [each for each in alike if not each.shows and each.view is not None]
        known.sort(key=lambda each: (each.sure, each.position), reverse=True)
        return pod.view is None or pod in known[:grown]


def resolve(
    request: Request, record: Record, turn: Turn, *, last_resort: bool = True
) -> Resolution:
    """Settle which container is asking.

    Args:
        request: what the call says.
        record: who holds what.
        turn: what the last call has left.
        last_resort: also try pods that were listed before and are not the last asker. Their
            admission has ended if all is known, which it may not be.

    Raises:
        ResolutionError: no pod can be asking this; the message says which are waiting.
    """
    found_tiers = tiers(record, turn)
    for tier in found_tiers.in_order if last_resort else found_tiers.in_order[:2]:
        found = [
            (pod, container)
            for pod in tier
            if request.owner in {None, pod.id} and (container := waiting(request, pod)) is not None
        ]
        known = [one for one in found if one[0].view is not None]
        candidates = known or found
        if candidates:
            candidates.sort(key=lambda one: _order(one[0], record, turn), reverse=record.listing)
            # A pod counted as listed before may be a new one of the same name.
            certain = tier in found_tiers.certain and all(
                waiting(request, pod) is None for pod in found_tiers.unpassed
            )
            sole = certain and len(found) == 1 and bool(known) and known[0][0].sure
            evidence = Evidence.WITNESS if sole else Evidence.ORDER
            first, *rivals = (
                Resolution(pod.id, container, pod.view, evidence) for pod, container in candidates
            )
            return replace(first, rivals=tuple(rivals))
    raise ResolutionError(_nothing_fits(request, record))


@dataclass(frozen=True, slots=True)
class Tiers:
    """The pods that may be asking.

    Attributes:
        in_order: the likeliest first; from the third on they are a last resort.
        certain: those of them of which a sole candidate is certain.
        unpassed: listed pods that are neither newcomers nor the last asker, and not passed.
    """

    in_order: Sequence[Sequence[RecordedPod]]
    certain: Sequence[Sequence[RecordedPod]] = ()
    unpassed: Sequence[RecordedPod] = ()


def tiers(record: Record, turn: Turn) -> Tiers:
    """Return newcomers, then the pod of the last call, then those not passed, then all others.

    Without ``List`` newcomers cannot be told from others.
    """
    if not record.listing:
        return Tiers([[each for each in record.unsettled if each.may_ask]])
    new, last, rest = list[RecordedPod](), list[RecordedPod](), list[RecordedPod]()
    for each in record.listed_unsettled:
        if each.may_ask and turn.is_new(each, record):
            new.append(each)
        elif each.may_ask:
            is_last = turn.is_asker(each) and each.kubelet_id not in turn.passed
            (last if is_last else rest).append(each)
    untried = [each for each in new if each.kubelet_id not in turn.tried] or new
    unpassed = [each for each in rest if each.kubelet_id not in turn.passed | turn.tried]
    certain = [] if any(each.kubelet_id in turn.tried for each in new) else [untried]
    # The last asker is certain if no newcomer lacks anything, and it was no guess or is shown.
    confirmed = not turn.guessed or all(each.shows for each in last)
    if confirmed and not any(each.lacks for each in new):
        certain.append(last)
    return Tiers([untried, last, unpassed, rest], certain, unpassed)


def _order(pod: RecordedPod, record: Record, turn: Turn) -> tuple[object, ...]:
    """Return a sort key: with ``List``, sorted in reverse, the newest is the likeliest.

    Without it that is the last asker, then who has something, then the oldest.
    """
    if record.listing:
        return turn.is_asker(pod) and bool(pod.held), pod.position, pod.id
    return not turn.is_asker(pod), not pod.held, pod.position, pod.id


def waiting(request: Request, pod: RecordedPod) -> ContainerDemand | None:
    """Return the container of *pod* whose turn it is, if it asks for just this (R4)."""
    if pod.view is None:
        return _waiting_unknown(request, pod)
    container = pod.next
    if container is None or count_of(container.demand, request.resource) != request.size:
        return None
    return None if pod.held.get(container.name, {}).get(request.resource) else container


def _waiting_unknown(request: Request, pod: RecordedPod) -> ContainerDemand | None:
    """Return the likeliest container of a pod that only the kubelet knows.

    One that has another resource and not this one is asking, unless it has whole cards, which may
    be asked for without memory. Else it is the first that lacks this, from the last one on that
    has something. The size cannot be compared: nobody knows what it asks for.
    """
    names = [one.name for one in pod.listed.containers] if pod.listed is not None else []
    begun = [
        name
        for name, places in pod.held.items()
        if any(places.get(one) for one in request.resource.others)
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
