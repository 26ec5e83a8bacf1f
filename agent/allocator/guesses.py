"""What follows from guesses, and from slots whose container is not known any more. Pure.

A guess is an assignment that may be another container's. The kubelet admits one pod at a time, its
containers in order, and starts none before all its calls (K1).
"""

from collections.abc import Iterable
from dataclasses import replace

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import NOTHING, Offered, SnapshotPod
from agent.holdings.holding import ContainerRef
from contract.resource import Resource


def has_guess(
    served: Iterable[CurrentPod],
    snapshot: AllocationSnapshot,
    container: ContainerRef,
    resource: Resource,
    ids: frozenset[str],
) -> bool:
    """Return whether only a guess, and not ``List``, says that a container holds *ids*."""
    found = snapshot.pod(container.pod)
    return (found is None or not found.shows_exactly(resource, ids)) and any(
        each.is_guess
        and (each.container, each.resource, each.ids) == (container.container, resource, ids)
        for pod in served
        if pod.id == container.pod
        for each in pod.assignments
    )


def is_guessed(
    served: Iterable[CurrentPod],
    snapshot: AllocationSnapshot,
    resource: Resource,
    ids: frozenset[str],
) -> bool:
    """Return whether the pod that seems to hold *ids* is a guess."""
    ours = (each for pod in served for each in pod.assignments if each.is_guess)
    unsure = (each for each in snapshot.listed_changing if not each.sure)
    return any((each.resource, each.ids) == (resource, ids) for each in ours) or any(
        each.shows_exactly(resource, ids) for each in unsure
    )


def find_halves(
    served: Iterable[CurrentPod],
    snapshot: AllocationSnapshot,
    resource: Resource,
    ids: frozenset[str],
) -> list[frozenset[str]]:
    """Return the slots of the other resource that a container with *ids* has, if it starts.

    If *ids* were assigned by a guess to a container that lacks the other resource, and slots of
    that one to a container that lacks this one, both are the same container's. Empty if *ids* are
    no such half.
    """
    halves = [
        each
        for pod in served
        for each in pod.assignments
        if each.is_guess
        and _lacks(snapshot, ContainerRef(pod.id, each.container), each.resource.other)
    ]
    if (resource, ids) not in [(each.resource, each.ids) for each in halves]:
        return []
    return [each.ids for each in halves if each.resource is resource.other]


def _lacks(snapshot: AllocationSnapshot, container: ContainerRef, resource: Resource) -> bool:
    """Return whether a container requests a resource, and has no slot of it."""
    info = snapshot.known.find(container.pod)
    found = info.demand.of(container.container) if info is not None else None
    needed = found is not None and resource.count_in(found.demand) > 0
    return needed and not snapshot.holding(container, resource)


def find_misplaced(
    pod: SnapshotPod, others: Iterable[CurrentPod]
) -> tuple[ContainerRef, Assignment] | None:
    """Return the container for which an assignment was guessed wrongly, and the right assignment.

    *pod* is that of the last call, and no container matches the present one. So if a container of
    it still lacks a resource, a guess of just that much for one of the *others* was wrong. ``List``
    does not show it for an ordinary init container (K4).
    """
    container = pod.find_lacking()
    if container is None:
        return None
    held = pod.held.get(container.name, {})
    for other in others:
        for each in other.assignments:
            fits = each.resource.count_in(container.demand) == len(each.ids)
            if each.is_guess and fits and not held.get(each.resource):
                guessed = ContainerRef(other.id, each.container)
                return guessed, replace(each, container=container.name)
    return None


def find_left(pod: CurrentPod, snapshot: AllocationSnapshot) -> CurrentPod:
    """Return a pod with only those of its allocated slots that no container holds by any source.

    The kubelet may still count them: the pod was rejected (K21), or they were given to the wrong
    container, and are those of one that ``List`` does not show (K4).
    """
    held = snapshot.held
    left = [
        each for each in pod.assignments if each.allocated and not each.ids & held[each.resource]
    ]
    return replace(pod, assignments=tuple(left))


def drop_freed(pods: Iterable[CurrentPod], offered: Offered) -> tuple[CurrentPod, ...]:
    """Return *pods* without the slots that the kubelet offers again, if any are left.

    It frees a pod as a whole. But the slots of a guess may be another pod's.
    """
    found = []
    for pod in pods:
        free = [each for each in pod.assignments if each.ids & offered.get(each.resource, NOTHING)]
        is_freed = any(not each.is_guess for each in free)
        left = [
            each for each in pod.assignments if each not in free and (each.is_guess or not is_freed)
        ]
        if left:
            found.append(replace(pod, assignments=tuple(left)))
    return tuple(found)
