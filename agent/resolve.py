"""Which container is asking: a pure, total, deterministic function of the evidence.

See DESIGN, "Resolving". The kubelet admits one pod at a time, its containers in order
(fact K1), and ``List`` shows the pod being admitted without what it still lacks (K3).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.errors import ResolutionError
from agent.podview import PodId, PodView
from agent.tickets import Resource, count_of
from agent.witness import Identified, ListedPod
from contract.allocation import Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand

Served = Callable[[PodId, str, Resource], bool]
"""Whether the agent's own record says that a pod's container got a resource."""

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
    """Which container it is, and by which evidence."""

    pod: PodId
    container: ContainerDemand
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that may be asking, with the container it would be asking for."""

    pod: PodId
    line: tuple[int, str, str, int, str]
    container: ContainerDemand
    in_progress: bool


def resolve(
    ask: Ask,
    *,
    views: Sequence[PodView],
    served: Served,
    listed: Sequence[Identified] | None,
    passed: frozenset[PodId] = frozenset(),
) -> Resolution:
    """Settle which container is asking.

    Args:
        ask: what the call says.
        views: the pods known from the API.
        served: the agent's own record; the only one for ordinary init containers (K4).
        listed: what ``List`` shows, identified; ``None`` when there is no witness.
        passed: pods seen lacking while another pod was served: the kubelet has rejected
            them and never tries them again (K8).

    Raises:
        ResolutionError: nothing that waits can be asking this; says what waits.
    """
    if listed is None:
        waiting = _waiting_by_record(ask, views, served)
        evidence = Evidence.ORDER
    else:
        waiting = _waiting_by_list(ask, listed, served)
        # A pod whose record is complete has been admitted: only its ordinary init containers,
        # which List omits (K4), can make it look as if it waited to an agent that restarted.
        done = passed | {view.id for view in views if _recorded(view)}
        fresh = [each for each in waiting if each.pod not in done]
        # One that holds something and lacks the rest is being admitted right now (K1, K3),
        # also when a wrong guess has put it among the passed.
        holding = {each.pod for each in listed if each.listed.all_held()}
        begun = [each for each in waiting if each.pod in holding]
        waiting = begun or fresh or waiting
        evidence = Evidence.WITNESS if len(waiting) == 1 else Evidence.ORDER
    if not waiting:
        raise ResolutionError(_nothing_fits(ask, views, served, listed))
    first = min(waiting, key=lambda each: (not each.in_progress, each.line, each.pod))
    return Resolution(first.pod, first.container, evidence)


def _recorded(view: PodView) -> bool:
    """Tell whether the record on a pod covers every container of it."""
    return all(each.name in view.recorded for each in view.demand.containers)


def next_containers(
    containers: Sequence[ContainerDemand], is_served: IsServed
) -> list[ContainerDemand]:
    """Give the containers that may come next, in order.

    Usually one. Ordinary init containers of which there is no record may have been
    served before the agent started (K4), so the one after them may come next as well.
    """
    started = [
        place
        for place, each in enumerate(containers)
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
        untouched = all(not is_served(each, resource) for resource in Resource)
        if each.kind is not ContainerKind.INIT or not untouched:
            break
    return options


def _is_served(view: PodView, listed: ListedPod | None, served: Served) -> IsServed:
    """Whose word counts: ``List`` where it can speak, else the agent's own record."""

    def is_served(container: ContainerDemand, resource: Resource) -> bool:
        if listed is not None and container.kind is not ContainerKind.INIT:
            return bool(listed.held(container.name, resource))
        recorded = listed is None and container.name in view.recorded
        return recorded or served(view.id, container.name, resource)

    return is_served


def _waiting_by_record(ask: Ask, views: Iterable[PodView], served: Served) -> list[Waiting]:
    """Who may be asking by the agent's own record alone."""
    waiting = (
        _wait(ask, view, _is_served(view, None, served))
        for view in views
        if not view.terminal and ask.owner in (None, view.id)
    )
    return [each for each in waiting if each is not None]


def _waiting_by_list(ask: Ask, listed: Iterable[Identified], served: Served) -> list[Waiting]:
    """Who may be asking by what ``List`` shows."""
    known: list[Waiting | None] = []
    unknown: list[Waiting | None] = []
    for each in listed:
        if ask.owner not in (None, each.pod):
            continue
        if each.view is None:
            unknown.append(_wait_unknown(ask, each))
        elif not each.view.terminal:
            known.append(_wait(ask, each.view, _is_served(each.view, each.listed, served)))
    # A pod of which only the kubelet knows (API server away, mirror pod late) is asking
    # only if no known pod is.
    found = [each for each in known if each is not None]
    return found or [each for each in unknown if each is not None]


def _wait(ask: Ask, view: PodView, is_served: IsServed) -> Waiting | None:
    """Take the container that asks for exactly this, of those that may come next."""
    for each in next_containers(view.demand.containers, is_served):
        if count_of(each.demand, ask.resource) == ask.size and not is_served(each, ask.resource):
            in_progress = any(
                is_served(other, resource)
                for other in view.demand.containers
                for resource in Resource
            )
            return Waiting(view.id, view.line, each, in_progress)
    return None


def _wait_unknown(ask: Ask, each: Identified) -> Waiting | None:
    """Take a pod without a spec by what ``List`` shows of it: its first container that lacks."""
    container = _first_lacking(ask.resource, each.listed)
    if container is None:
        return None
    other = len(each.listed.held(container, ask.resource.other))
    counts = {ask.resource: ask.size, ask.resource.other: other}
    # Memory is never asked for without cores: asked for first, it is seated as a share's.
    counts[Resource.CORE] = max(counts[Resource.CORE], 1)
    demand = Demand(counts[Resource.CORE], counts[Resource.MEMORY])
    asked = ContainerDemand(container, ContainerKind.MAIN, 0, demand)
    return Waiting(each.pod, (0, "", "", 0, ""), asked, bool(each.listed.all_held()))


def _first_lacking(resource: Resource, listed: ListedPod) -> str | None:
    """Prefer the container that has the other resource already, then the first with nothing."""
    lacking = [each for each in listed.containers if not each.held.get(resource)]
    begun = [each for each in lacking if each.held.get(resource.other)]
    return (begun or lacking)[0].name if lacking else None


_MOST_NAMED = 5


def _nothing_fits(
    ask: Ask, views: Sequence[PodView], served: Served, listed: Sequence[Identified] | None
) -> str:
    """Say what was asked and what was waiting."""
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
