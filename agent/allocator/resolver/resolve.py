"""Which container is asking: a pure, deterministic function of the evidence.

The kubelet admits one pod at a time, its containers in order (fact K1), and ``List`` shows
the pod being admitted without what it still lacks (K3); docs/kubelet-facts.md has
the facts.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.allocator.model.pod_view import PodId, PodView, QueuePosition
from agent.allocator.model.podresources import ListedPod, MatchedPod
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of

Served = Callable[[PodId, str, Resource], bool]
"""Whether the ledger says that a pod's container got a resource."""

IsServed = Callable[[ContainerDemand, Resource], bool]
"""Whether a container of one pod got a resource, by whose word counts for it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call reveals about its container.

    Attributes:
        resource: which resource is asked for.
        size: how many places.
        owner: the pod whose init container's places are to be handed on, where the call
            names such places (fact K7).
    """

    resource: Resource
    size: int
    owner: PodId | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which container it is, and by which evidence.

    Attributes:
        pod: its pod.
        container: what it asks for.
        evidence: how it was settled.
        rivals: other containers that may be asking as well, the likeliest first.
    """

    pod: PodId
    container: ContainerDemand
    evidence: Evidence
    rivals: tuple["Resolution", ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class AdmissionHistory:
    """What is known of the admissions before this call.

    Attributes:
        rejected: pods seen lacking while another pod was served: rejected, if that other was not
            guessed wrongly. They are asked about last.
        admission_over: pods after which a newer one was admitted (K1, K3), whatever they hold
            (K21).
        refused: pods that the agent refused for certain: they are never the one again.
        newcomers: pods that were not listed when the last call was settled: if one of them can
            be asking, the admission of all others is over (K1, K3).
        there_at_start: pods that were there when the agent started: what their ordinary init
            containers had got by then nobody can tell (K4).
    """

    rejected: AbstractSet[PodId] = frozenset()
    admission_over: AbstractSet[PodId] = frozenset()
    refused: AbstractSet[PodId] = frozenset()
    newcomers: AbstractSet[PodId] = frozenset()
    there_at_start: AbstractSet[PodId] = frozenset()


_NO_HISTORY = AdmissionHistory()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that may be asking, with the container it would be asking for.

    Attributes:
        pod: which pod.
        position: where it stands in the kubelet's queue.
        container: what it would be asking for.
        in_progress: it has got something already.
        certain: if it is the only one that may be asking, the evidence is witness, not order.
    """

    pod: PodId
    position: QueuePosition
    container: ContainerDemand
    in_progress: bool
    certain: bool = True


def resolve(
    ask: Ask,
    *,
    views: Sequence[PodView],
    served: Served,
    listed: Sequence[MatchedPod] | None,
    history: AdmissionHistory = _NO_HISTORY,
) -> Resolution:
    """Settle which container is asking.

    Args:
        ask: what the call says.
        views: the pods known from the API.
        served: what the ledger says; the only word for ordinary init containers (K4).
        listed: the pods that ``List`` shows, identified, without such as are known to
            lack nothing; ``None`` when there is no witness.
        history: what is known of the admissions before this call.

    Raises:
        ResolutionError: nothing that waits can be asking this; says what waits.
    """
    if listed is None:
        found = _waiting_without_list(ask, views, served)
        found.sort(key=lambda each: (not each.in_progress, each.position, each.pod))
    else:
        found = _likeliest(ask, listed, served, history)
        # The kubelet lists a pod when its turn comes, not before. Where several lack, all but
        # the newest were rejected, which the API has not told yet (K8).
        found.sort(
            key=lambda each: (each.in_progress, each.certain, each.position, each.pod), reverse=True
        )
    if not found:
        raise ResolutionError(_nothing_fits(ask, views, served, listed))
    sole = listed is not None and len(found) == 1 and found[0].certain
    evidence = Evidence.WITNESS if sole else Evidence.ORDER
    first, *others = (Resolution(each.pod, each.container, evidence) for each in found)
    return replace(first, rivals=tuple(others)) if others else first


def _likeliest(
    ask: Ask, listed: Sequence[MatchedPod], served: Served, history: AdmissionHistory
) -> list[Waiting]:
    """Return the listed pods on the first rung of the ladder that has any."""
    known, unknown = _waiting_by_list(
        ask,
        [each for each in listed if each.pod not in history.refused],
        served,
        history.there_at_start,
    )
    if any(each.pod in history.newcomers for each in (*known, *unknown)):
        known = [each for each in known if each.pod in history.newcomers]
        unknown = [each for each in unknown if each.pod in history.newcomers]
    ladder = _ladder(known, unknown, listed, history)
    return next((rung.waiting for rung in ladder if rung.waiting), [])


@dataclass(frozen=True, slots=True)
class _Rung:
    """One degree of likelihood.

    Attributes:
        name: what the pods on it have in common.
        waiting: these pods.
    """

    name: str
    waiting: list[Waiting]


def _ladder(
    known: Sequence[Waiting],
    unknown: Sequence[Waiting],
    listed: Sequence[MatchedPod],
    history: AdmissionHistory,
) -> list[_Rung]:
    """Sort pods that may be asking by how likely that is, the likeliest first.

    Args:
        known: pods that the API has told of.
        unknown: pods that only the kubelet knows (API server away, mirror pod late).
        listed: the pods that ``List`` shows.
        history: what is known of the admissions before this call.
    """
    # A pod whose allocation annotation is complete has been admitted: only its ordinary init
    # containers, which List omits (K4), can make it look as if it waited to an agent that
    # restarted. Not one that the kubelet has only come to now: somebody else wrote that.
    lacking = {each.pod for each in listed if lacks(each)}
    annotated = {each.pod for each in listed if each.view and is_annotated(each.view)}
    done = history.rejected | history.admission_over | (annotated - (lacking & history.newcomers))
    holding = {each.pod for each in listed if any(each.listed.each_held())}
    halves = {
        (each.pod, container.name)
        for each in listed
        for container in each.listed.containers
        if any(container.held.values())
        # A whole card may be asked for without memory.
        and len(container.held.get(Resource.CORE, ())) < CORES_PER_CARD
    }
    unheard = [
        each for each in unknown if each.pod not in history.rejected | history.admission_over
    ]
    # One that holds something and lacks the rest is being admitted right now (K1, K3),
    # also when a wrong guess has put it among the rejected.
    likely = [each for each in known if each.pod in holding - history.admission_over]
    likely += [each for each in unheard if (each.pod, each.container.name) in halves]
    likely += [each for each in known if each.pod not in done and each not in likely]
    if unheard:  # none of them is certain: it may be the one that only the kubelet knows
        likely = [replace(each, certain=False) for each in likely]
    return [
        _Rung("being admitted, or not admitted yet", likely),
        # One that has all it needs of some containers and nothing in the next may be done:
        # whether that one asks for GPUs is not known.
        _Rung(
            "known to the kubelet only, and waiting for certain",
            [
                each
                for each in unheard
                if not each.in_progress or (each.pod, each.container.name) in halves
            ],
        ),
        # An annotation that covers what List shows lacking was written by somebody else.
        _Rung(
            "has an allocation annotation that others wrote",
            [
                each
                for each in known
                if each.certain and each.pod in lacking - history.rejected - history.admission_over
            ],
        ),
        _Rung("known to the kubelet only", unheard),
        _Rung("rejected, as far as can be told", list(known)),
        _Rung("known to the kubelet only, and rejected", list(unknown)),
    ]


def is_annotated(view: PodView) -> bool:
    """Return whether a pod's allocation annotation covers every container of it."""
    return all(each.name in view.annotated for each in view.demand.containers)


def next_containers(
    containers: Sequence[ContainerDemand], is_served: IsServed
) -> list[ContainerDemand]:
    """Return the containers that may come next, in order.

    Usually one. What an ordinary init container lacks by the ledger it may have got before
    the agent started (K4), so the one after it may come next as well.
    """
    started = [
        index
        for index, each in enumerate(containers)
        if any(is_served(each, resource) for resource in Resource)
    ]
    begin = started[-1] if started else 0
    options: list[ContainerDemand] = []
    for each in containers[begin:]:
        lacking = [
            resource
            for resource in Resource
            if count_of(each.demand, resource) and not is_served(each, resource)
        ]
        if not lacking:
            continue
        options.append(each)
        if each.kind is not ContainerKind.INIT:
            break
    return options


def served_again(ask: Ask, waiting: Sequence[MatchedPod], served: Served) -> Resolution | None:
    """Find the ordinary init container that a kubelet serves once more.

    One that died before it wrote down what it had given begins that container again, and
    what it gives may be the places of the init container before (K7), so that they are not
    even offered. ``List`` says nothing of it (K4); to be asked when no other container fits.

    Args:
        ask: what the call says.
        waiting: the listed pods that lack something.
        served: what the ledger says.
    """
    for each in sorted(waiting, key=lambda each: each.pod, reverse=True):
        containers = each.view.demand.containers if each.view is not None else ()
        for container in reversed(containers):
            if (
                container.kind is ContainerKind.INIT
                and ask.owner in (None, each.pod)
                and count_of(container.demand, ask.resource) == ask.size
                and served(each.pod, container.name, ask.resource)
            ):
                return Resolution(each.pod, container, Evidence.WITNESS)
    return None


def waits(each: MatchedPod, served: Served) -> bool:
    """Return whether a listed pod of which the API tells may still ask for something.

    Args:
        each: the pod, as ``List`` and the API show it.
        served: what the ledger says, for ordinary init containers (K4).
    """
    if each.view is None or each.view.terminal:
        return False
    is_served = _is_served(each.view, each.listed, served)
    return lacks(each) or bool(next_containers(each.view.demand.containers, is_served))


def lacks(each: MatchedPod) -> bool:
    """Return whether a listed pod asks for something that ``List`` does not show it holding."""
    if each.view is None or each.view.terminal:
        return False
    return any(
        count_of(container.demand, resource) and not each.listed.held(container.name, resource)
        for container in each.view.demand.containers
        if container.kind is not ContainerKind.INIT
        for resource in Resource
    )


def _is_served(view: PodView, listed: ListedPod | None, served: Served) -> IsServed:
    """Whose word counts: ``List`` where it can speak, else ledger and annotation."""

    def is_served(container: ContainerDemand, resource: Resource) -> bool:
        if listed is not None and container.kind is not ContainerKind.INIT:
            return bool(listed.held(container.name, resource))
        if served(view.id, container.name, resource):
            return True
        # Of one that has its other resource the ledger knows more than its annotation.
        annotated = listed is None and container.name in view.annotated
        return annotated and not served(view.id, container.name, resource.other)

    return is_served


def _waiting_without_list(ask: Ask, views: Iterable[PodView], served: Served) -> list[Waiting]:
    """Who may be asking by ledger and annotations alone."""
    return [
        waiting
        for view in views
        if not view.terminal and ask.owner in (None, view.id)
        for waiting in _wait(ask, view, _is_served(view, None, served))[:1]
    ]


def _waiting_by_list(
    ask: Ask, listed: Iterable[MatchedPod], served: Served, there_at_start: AbstractSet[PodId]
) -> tuple[list[Waiting], list[Waiting]]:
    """Who may be asking by what ``List`` shows: known pods, and those the API has not told of."""
    known: list[Waiting] = []
    unknown: list[Waiting | None] = []
    for each in listed:
        if ask.owner not in (None, each.pod):
            continue
        if each.view is None:
            unknown.append(_wait_unknown(ask, each))
        elif not each.view.terminal:
            waiting = _wait(ask, each.view, _is_served(each.view, each.listed, served))
            if (
                each.pod not in there_at_start
            ):  # what its init containers got was seen: they come in order
                waiting = waiting[:1]
            earlier = [
                one
                for view in each.earlier
                for one in _wait(ask, view, _is_served(view, each.listed, served))[:1]
            ]
            certain = each.identified and not earlier
            known += [replace(one, certain=certain) for one in waiting or earlier]
    return known, [each for each in unknown if each is not None]


def _wait(ask: Ask, view: PodView, is_served: IsServed) -> list[Waiting]:
    """Take the containers that ask for exactly this, of those that may come next, in order."""
    in_progress = any(
        is_served(other, resource) for other in view.demand.containers for resource in Resource
    )
    return [
        Waiting(view.id, view.position, each, in_progress)
        for each in next_containers(view.demand.containers, is_served)
        if count_of(each.demand, ask.resource) == ask.size and not is_served(each, ask.resource)
    ]


def _wait_unknown(ask: Ask, each: MatchedPod) -> Waiting | None:
    """Take a pod without a spec by what ``List`` shows of it: its first container that lacks."""
    container = _first_lacking(ask.resource, each.listed)
    if container is None:
        return None
    other = len(each.listed.held(container, ask.resource.other))
    counts = {ask.resource: ask.size, ask.resource.other: other}
    # A share has both: where only one is known, one unit of the other is assumed.
    counts[Resource.CORE] = max(counts[Resource.CORE], 1)
    if counts[Resource.CORE] < CORES_PER_CARD:
        counts[Resource.MEMORY] = max(counts[Resource.MEMORY], 1)
    demand = Demand(counts[Resource.CORE], counts[Resource.MEMORY])
    asked = ContainerDemand(container, ContainerKind.MAIN, 0, demand)
    begun = bool(each.listed.all_held())
    return Waiting(each.pod, QueuePosition(0, "", "", 0, ""), asked, begun, certain=False)


def _first_lacking(resource: Resource, listed: ListedPod) -> str | None:
    """Prefer the container that has the other resource already, then the first with nothing.

    Containers come in order (fact K1): those before the last that holds something are over.
    """
    holding = [index for index, each in enumerate(listed.containers) if any(each.held.values())]
    coming = listed.containers[holding[-1] if holding else 0 :]
    lacking = [each for each in coming if not each.held.get(resource)]
    begun = [each for each in lacking if each.held.get(resource.other)]
    return (begun or lacking)[0].name if lacking else None


_MOST_NAMED = 5


def _nothing_fits(
    ask: Ask, views: Sequence[PodView], served: Served, listed: Sequence[MatchedPod] | None
) -> str:
    """Return what was asked and what was waiting."""
    pending: list[tuple[PodView, ListedPod | None]] = (
        [(view, None) for view in views]
        if listed is None
        else [(each.view, each.listed) for each in listed if each.view is not None]
    )
    texts = sorted(
        f"{view.id} container {each.name} (cores {each.demand.cores}, memory {each.demand.memory})"
        for view, entry in pending
        if not view.terminal
        for each in next_containers(view.demand.containers, _is_served(view, entry, served))
    )
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    waiting = "; ".join(texts[:_MOST_NAMED]) + more if texts else "none"
    return (
        f"{ask.size} places of {ask.resource} were asked for, "
        f"but no waiting container asks for that; waiting: {waiting}"
    )
