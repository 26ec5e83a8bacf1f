"""Resolves the target of a call: the container that the kubelet makes it for. Pure.

The kubelet admits one pod at a time, its containers in order (K1), and lists a pod when its
admission begins (K3). So the target's pod is a pod that is listed only since the last call: such a
new pod proves that all earlier admissions have ended. If no pod is new, it is the pod of the last
call (R3, :class:`LastCall`). Within the pod the target is the first container that lacks a part of
its request (R4, :func:`next_container`).

:func:`resolve` decides. The evidence is ``witness`` if only one container can be the target and its
pod is :attr:`~agent.allocator.snapshot_pod.SnapshotPod.sure`. In addition, its pod must be new, and
no new pod was ruled out, or it must be the pod of a last call that was right. Otherwise, and always
without ``List``, the evidence is ``order``, and the target is the likeliest container.
docs/which-container.md leads from a pod's first entry in ``List`` to the evidence, on one page. The
rules are in docs/architecture.md, the facts in docs/kubelet-facts.md.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.allocator.current_pod import Assignment
from agent.allocator.identity import KnownPods
from agent.allocator.interfaces import HeldSlots
from agent.allocator.slots import are_whole_cards, count_cards
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import Signature, SnapshotPod
from agent.errors import ResolutionError
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.resource import Resource
from placement.pods import PodId, PodInfo


@dataclass(frozen=True, slots=True)
class LastCall:
    """State kept from one call to the next: it tells new pods from pods listed before (R3).

    Attributes:
        pod: the pod of the last call, by the kubelet's UID; ``None`` before the first call of
            this kubelet instance.
        signatures: how often ``List`` showed each signature then; ``None`` if that is not known.
        guessed: whether *pod* was a guess. It was right if ``List`` shows the pod's slots later.
        finished: pods whose admission has ended: they lacked devices, or had ended, while another
            pod was the target, or when a call was refused.
        fallback: the last call before this guess; it becomes valid again if *pod* was wrong.
        ruled_out: pods that were wrongly guessed since *fallback*, or likely refused without
            ``List``.
        at_wrong_guess: *signatures* at the call of the latest of these guesses; ``None`` without
            one. That call was for a pod that ``List`` showed then, so a pod that it shows only
            since then was admitted later, and is likelier now (K1).
    """

    pod: PodId | None = None
    signatures: Mapping[Signature, int] | None = None
    guessed: bool = True
    finished: frozenset[PodId] = frozenset()
    fallback: "LastCall | None" = None
    ruled_out: frozenset[PodId] = frozenset()
    at_wrong_guess: Mapping[Signature, int] | None = None

    def after(self, snapshot: AllocationSnapshot, target: PodId, *, guessed: bool) -> "LastCall":
        """Return the state after a call for *target*."""
        found = snapshot.pod(target)
        target_id = found.kubelet_id if found is not None else target
        if not snapshot.listing:  # the guessed pod may not be listed yet
            finished = self.finished - {target_id}
            return replace(self, pod=target_id, guessed=True, finished=finished, fallback=None)
        others = [
            each
            for each in snapshot.listed_changing
            if target not in {each.id, *(one.id for one in each.namesakes)}
        ]
        return LastCall(
            target_id,
            snapshot.signatures,
            guessed,
            self._finished_of(others),
            self.fallback if target_id == self.pod else replace(self, fallback=None),
            self.ruled_out if target_id == self.pod else frozenset(),
        )

    def refused(self, snapshot: AllocationSnapshot) -> "LastCall":
        """Return the state after a refusal: every listed pod that lacks devices is rejected.

        Without ``List`` that is only likely of the pod of the last call.
        """
        if not snapshot.listing:
            ruled_out = self.ruled_out | ({self.pod} if self.pod is not None else set())
            return replace(self, pod=None, guessed=True, ruled_out=ruled_out)
        rejected = self._finished_of(snapshot.listed_changing)
        return replace(
            self,
            signatures=snapshot.signatures,
            guessed=True,
            finished=rejected,
            at_wrong_guess=None,
        )

    def _finished_of(self, pods: Iterable[SnapshotPod]) -> frozenset[PodId]:
        """Return the pods whose admission has ended, given that the call was for none of *pods*.

        This includes ended pods: once their entries leave the checkpoint, they look like waiting
        ones. An entry that may be another pod's with its name says nothing about a pod that has
        got no slots so far.
        """
        return frozenset(
            each.kubelet_id
            for each in pods
            if each.ended
            or each.kubelet_id in self.finished
            or (each.lacks and (each.sure or each.info is None or each.held or each.checkpointed))
        )

    def before_wrong_guess(self) -> "LastCall":
        """Return the state to continue from if the guess of this call was wrong."""
        if not self.guessed or self.pod is None:
            return self
        if self.fallback is None:  # it was guessed without List, and its call may still come
            return replace(self, pod=None)
        return replace(
            self.fallback,
            ruled_out=self.fallback.ruled_out | {self.pod},
            at_wrong_guess=self.signatures,
        )

    def corrected(self, pod: PodId | None) -> "LastCall":
        """Return the state to continue from if the guess of this call was wrong.

        *pod* is the pod, by the kubelet's UID, for which it certainly was; ``None`` if unknown.
        """
        if pod is None or not self.guessed or self.pod is None:
            return self.before_wrong_guess()
        # The guessed pod was listed before *pod*, or with it: its admission has ended (K1). If it
        # was guessed without List, or has the same name, its calls may still come.
        over = set() if self.fallback is None or self.pod.key == pod.key else {self.pod}
        finished = (self.finished | over) - {pod}
        return replace(self, pod=pod, guessed=False, finished=finished, fallback=None)

    def forget_unlisted(self, snapshot: AllocationSnapshot) -> "LastCall":
        """Return the state without unlisted pods: if their names are listed again, they are new.

        *snapshot* may be that of an observation without a call.
        """
        if not snapshot.listing:
            return self
        pod = self.pod
        if pod is not None and not snapshot.lists(pod.key):
            pod = None
        return replace(
            self,
            pod=pod,
            signatures=_still_listed(self.signatures, snapshot.signatures),
            fallback=self.fallback.forget_unlisted(snapshot) if self.fallback is not None else None,
            at_wrong_guess=_still_listed(self.at_wrong_guess, snapshot.signatures),
        )

    @property
    def was_guessed_without_list(self) -> bool:
        """Whether the last call was guessed without ``List``."""
        return self.guessed and self.fallback is None

    def is_target(self, pod: SnapshotPod) -> bool:
        """Return whether the last call was for *pod*, whose UID may not have been known then."""
        last = self.pod
        return last is not None and last.key == pod.id.key and last.uid in {"", pod.uid}

    def is_new(self, pod: SnapshotPod, snapshot: AllocationSnapshot) -> bool:
        """Return whether a pod is listed only since the last call.

        If ``List`` shows n more pods with its signature than then, the n newest without devices are
        new. The pod of the last call is new, too, if ``List`` was unavailable in that call. If
        nothing is known of the last call, every pod is new.
        """
        if self.signatures is None or pod.signature not in self.signatures:
            return True
        grown = snapshot.signatures.get(pod.signature, 0) - self.signatures[pod.signature]
        if pod.shows_devices or grown <= 0:
            return grown > 0 and self.was_guessed_without_list and self.is_target(pod)
        alike = (each for each in snapshot.listed_changing if each.signature == pod.signature)
        known = [each for each in alike if not each.shows_devices and each.info is not None]
        # The API shows one pod of a name at a time: the others were there before it.
        known.sort(key=lambda each: (snapshot.is_shown(each), each.sure, each.rank), reverse=True)
        return pod.info is None or pod in known[:grown]

    def changes(self, snapshot: AllocationSnapshot, before: "LastCall", known: KnownPods) -> bool:
        """Return whether a snapshot differs if built with this state, instead of the one *before*.

        *known* are the pods in the API now.
        """
        finished = before.finished ^ self.finished
        targets = {before.pod, self.pod} if before.pod != self.pod else set()
        return any(
            (each.kubelet_id in finished and (each.held or each.stale))
            or (each.kubelet_id in targets and not (each.listed and known.is_shown(each.uid)))
            or any(one.kubelet_id in targets for one in each.namesakes)
            for each in snapshot.changing
        )

    def is_newer_than_guess(self, pod: SnapshotPod, snapshot: AllocationSnapshot) -> bool:
        """Return whether a pod is listed only since the latest wrong guess, if there was one."""
        return replace(self, signatures=self.at_wrong_guess).is_new(pod, snapshot)


def _still_listed(
    then: Mapping[Signature, int] | None, now: Mapping[Signature, int]
) -> Mapping[Signature, int] | None:
    """Return the signatures of an earlier ``List``, without the pods that have left it since."""
    if then is None or then.items() <= now.items():
        return then
    return {each: min(count, now.get(each, 0)) for each, count in then.items()}


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """The facts that a call has about its target.

    Attributes:
        owner: the pod whose init container's slots the call names (K7); ``None`` if it names none.
        named: the device IDs that the container gets in any case: in ``Allocate`` all of them.
        blind: the guesses that may have been for a pod that ``List`` did not show yet.
    """

    resource: Resource
    size: int
    owner: PodId | None = None
    named: Collection[str] = ()
    blind: Collection[Assignment] = ()


@dataclass(frozen=True, slots=True)
class Resolution:
    """The target of a call, and the evidence.

    Attributes:
        pod: its pod.
        container: its name and request.
        info: its pod in the API; ``None`` if only the kubelet knows it.
        evidence: ``witness`` or ``order``.
        rivals: the other containers that may be the target, the likeliest first.
        sole: whether no container but this one may be the target, not even of a running pod.
    """

    pod: PodId
    container: ContainerDemand
    info: PodInfo | None
    evidence: Evidence
    rivals: tuple["Resolution", ...] = field(default=(), compare=False)
    sole: bool = field(default=True, compare=False)

    @property
    def ref(self) -> ContainerRef:
        """The container."""
        return ContainerRef(self.pod, self.container.name)


def resolve(
    request: TargetRequest,
    snapshot: AllocationSnapshot,
    last_call: LastCall,
    *,
    last_resort: bool = True,
) -> Resolution:
    """Return the target of a call.

    With *last_resort*, pods are tried, too, that were listed before the last call, which was not
    for them. Their admission has ended, unless the agent has missed something.

    Raises:
        ResolutionError: no container can be the target; the message has the waiting ones.
    """
    tiers = _tiers(snapshot, last_call)
    in_order = [(tiers.new, tiers.new_is_certain), (tiers.last, tiers.last_is_certain)]
    if last_resort:
        in_order += [(tiers.unfinished, False), (tiers.old, False)]
    for tier, certain in in_order:
        found = _matching(request, tier)
        known = [one for one in found if one[0].info is not None]
        # One that runs is left alone (K11): a kubelet that died took with it what it lacks (K33).
        likeliest = [one for one in known if not one[0].may_run] or known
        namesakes = _matching(request, [one for each in tier for one in each.namesakes])
        successors = [one for one in namesakes if snapshot.is_shown(one[0])]
        candidates = [*likeliest, *successors] or namesakes or found
        candidates.sort(
            key=lambda one: _order(one[0], snapshot, last_call), reverse=snapshot.listing
        )
        if candidates:
            only_sure_match = certain and len(found) == 1 and bool(known) and known[0][0].sure
            # A pod that counts as listed before may be a new one with the same name. This is true
            # even if the call names an init container's slots: their owner may be a guess itself.
            rivalled = any(next_container(request, each) for each in tiers.unfinished)
            is_certain = only_sure_match and not rivalled and not _may_have_had(request, known)
            evidence = Evidence.WITNESS if is_certain else Evidence.ORDER
            first, *rivals = (
                Resolution(pod.id, container, pod.info, evidence) for pod, container in candidates
            )
            is_guess = tier is tiers.last and not tiers.last_is_right
            sole = not rivals and not rivalled and not is_guess and len(likeliest) == len(known)
            return replace(first, rivals=tuple(rivals), sole=sole)
    raise ResolutionError(_explain_failure(request, snapshot))


def _matching(
    request: TargetRequest, pods: Iterable[SnapshotPod]
) -> list[tuple[SnapshotPod, ContainerDemand]]:
    """Return the pods whose next container may be the target, and that container."""
    return [
        (pod, container)
        for pod in pods
        if request.owner in {None, pod.id}
        and pod.may_be_target
        and (container := next_container(request, pod)) is not None
    ]


def _may_have_had(
    request: TargetRequest, found: Iterable[tuple[SnapshotPod, ContainerDemand]]
) -> bool:
    """Return whether a guess without ``List`` may have been for the container that is next.

    Then another container of its pod may be the target.
    """
    return any(
        each.resource.count_in(container.demand) == len(each.ids)
        for each in request.blind
        for _, container in found
    )


@dataclass(frozen=True, slots=True)
class _Tiers:
    """The pods that may be the target, the likeliest first (R3).

    Attributes:
        new: new pods; without ``List`` every pod, since only ``List`` shows new ones.
        last: the pod of the last call.
        unfinished: the other pods whose admission may not have ended.
        old: pods whose turn is over unless the agent has missed something: all that were listed
            before the last call, and new ones that were guessed wrongly. Tried last.
        new_is_certain: whether a sole candidate of *new* is certain.
        last_is_right: whether the last call was certainly for its pod.
        last_is_certain: whether a sole candidate of *last* is certain.
    """

    new: Sequence[SnapshotPod]
    last: Sequence[SnapshotPod] = ()
    unfinished: Sequence[SnapshotPod] = ()
    old: Sequence[SnapshotPod] = ()
    new_is_certain: bool = False
    last_is_right: bool = False
    last_is_certain: bool = False


def _tiers(snapshot: AllocationSnapshot, last_call: LastCall) -> _Tiers:
    if not snapshot.listing:
        may_be = [each for each in snapshot.changing if each.may_be_target]
        over = last_call.finished | last_call.ruled_out
        return _Tiers([each for each in may_be if each.kubelet_id not in over], old=may_be)
    new, last, old = list[SnapshotPod](), list[SnapshotPod](), list[SnapshotPod]()
    # A listed pod that was created after another one of its name was deleted: the admission of the
    # deleted one has ended (K1).
    shown = {each.id.key for each in snapshot.listed_changing if snapshot.is_shown(each)}
    for each in snapshot.listed_changing:
        is_replaced = each.info is not None and not snapshot.is_shown(each)
        if not each.may_be_target or (is_replaced and each.id.key in shown):
            continue
        if last_call.is_new(each, snapshot):
            new.append(each)
        else:
            is_last = last_call.is_target(each) and each.kubelet_id not in last_call.finished
            (last if is_last else old).append(each)
    untried = new
    if last_call.at_wrong_guess is not None:  # else they are only less likely, by _order
        untried = [each for each in new if each.kubelet_id not in last_call.ruled_out] or new
    # The pod of the last call is certain if no new pod lacks devices, and if it was no guess or
    # List shows its devices.
    last_is_right = not last_call.guessed or all(each.shows_devices for each in last)
    return _Tiers(
        untried,
        last,
        [each for each in old if each.kubelet_id not in last_call.finished | last_call.ruled_out],
        [*old, *(each for each in new if each not in untried)],
        new_is_certain=not any(each.kubelet_id in last_call.ruled_out for each in new),
        last_is_right=last_is_right,
        last_is_certain=last_is_right and not any(each.lacks for each in new),
    )


def _order(
    pod: SnapshotPod, snapshot: AllocationSnapshot, last_call: LastCall
) -> tuple[object, ...]:
    """Return a sort key for likelihood.

    With ``List`` it is sorted in reverse: the newest pod is the likeliest. Without ``List`` the
    order is: the pod of the last call, then pods with devices, then the oldest.
    """
    if snapshot.listing:
        is_last = last_call.is_target(pod) and bool(pod.held)
        untried = pod.kubelet_id not in last_call.ruled_out
        return is_last, untried, last_call.is_newer_than_guess(pod, snapshot), pod.rank, pod.id
    return not last_call.is_target(pod), not pod.held, pod.rank, pod.id


def next_container(request: TargetRequest, pod: SnapshotPod) -> ContainerDemand | None:
    """Return the first container of *pod* that lacks devices, if its request matches (R4)."""
    if pod.info is None:
        return _next_of_unknown(request, pod)
    container = pod.find_lacking()
    if container is None or request.resource.count_in(container.demand) != request.size:
        return None
    return None if pod.held.get(container.name, {}).get(request.resource) else container


def _next_of_unknown(request: TargetRequest, pod: SnapshotPod) -> ContainerDemand | None:
    """Return the likeliest container of a pod that only the kubelet knows.

    It is a container that has the other resource but not this one, unless it has whole cards, which
    may be requested without memory. Otherwise it is the first container without this resource, from
    the last one with devices on. The size is not compared: only the API has the requests.
    """
    names = [one.name for one in pod.listed.containers] if pod.listed is not None else []
    begun = [
        name
        for name, slots in pod.held.items()
        if slots.get(request.resource.other)
        and not slots.get(request.resource)
        and not are_whole_cards(slots.get(Resource.CORE, ()))
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
    return assumed_container(name, pod.held.get(name, {}), request)


def assumed_container(name: str, held: HeldSlots, request: TargetRequest) -> ContainerDemand:
    """Return the smallest request of a container that holds slots, whose pod is not in the API.

    A share has cores and memory of each of its cards: if one of them is not known yet, one unit of
    each card is assumed. Memory that is not the same on each card is that of whole cards.

    *request* is of another resource than *held*, the slots that it holds.
    """
    counts = {each: len(slots) for each, slots in held.items()} | {request.resource: request.size}
    cores, memory = (counts.get(each, 0) for each in (Resource.CORE, Resource.MEMORY))
    cards = max(map(count_cards, (request.named, *held.values())), default=0) or 1
    cores = cores or (CORES_PER_CARD * cards if memory % cards else cards)
    if cores >= CORES_PER_CARD * cards:  # whole cards
        demand = Demand(cores, memory)
    else:
        demand = Demand(cores, memory or cards, cards)
    return ContainerDemand(name, ContainerKind.MAIN, 0, demand)


_MOST_NAMED = 5


def _explain_failure(request: TargetRequest, snapshot: AllocationSnapshot) -> str:
    """Return a message with the request and the waiting containers."""
    texts = sorted(
        f"{pod.id} container {each.name} (cores {each.demand.cores}, memory {each.demand.memory})"
        for pod in (snapshot.listed_changing if snapshot.listing else snapshot.changing)
        if pod.may_be_target and (each := pod.find_lacking()) is not None
    )
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    names = "; ".join(texts[:_MOST_NAMED]) + more if texts else "none"
    return f"no container waits for {request.resource.format_count(request.size)}; waiting: {names}"
