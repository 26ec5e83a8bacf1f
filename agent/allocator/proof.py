"""Proving before the start: who holds these places by the kubelet's own record, and may it.

Pure but for the ledger it is given. docs/architecture.md has the whole of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.allocator.model.allocations import grant_of
from agent.allocator.model.grant import check_free, check_request, check_together, translate
from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.model.podresources import MatchedPod, Snapshot, match_entries
from agent.allocator.model.tickets import DeviceTable
from agent.errors import GrantError
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource, count_of

_NOTHING: frozenset[str] = frozenset()


def proven(ledger: Ledger, resource: Resource, ids: frozenset[str]) -> ContainerRef | None:
    """Return the container that the kubelet's record has already shown to hold *ids*."""
    for ref in ledger.find(resource, ids):
        held = ledger.holding(ref, resource)
        if held is not None and held.proven:
            return ref
    return None


def holder(
    snapshot: Snapshot,
    resource: Resource,
    ids: frozenset[str],
    *,
    views_of: Callable[[Key], Sequence[PodView]],
    owners: Mapping[tuple[Resource, str], PodId],
) -> tuple[ContainerRef, Mapping[Resource, frozenset[str]]] | None:
    """Find the container that ``List`` shows holding exactly *ids*, and all it holds.

    Args:
        snapshot: what ``List`` showed.
        resource: of what.
        ids: device IDs.
        views_of: the pods of a name that the API shows.
        owners: which pod each held device ID was given to, from the ledger.
    """
    keys = {
        entry.key
        for entry in snapshot.pods
        for container in entry.containers
        if container.held.get(resource) == ids
    }
    names = {name for _, name in keys}
    entries = [entry for entry in snapshot.pods if entry.name in names and entry.key in keys]
    for each in match_entries(entries, views_of, owners):
        for container in each.listed.containers:
            if container.held.get(resource) == ids:
                return ContainerRef(each.pod, container.name), container.held
    return None


def why_unproven(ledger: Ledger, guessed: Sequence[ContainerRef]) -> str:
    """Return why the kubelet's record, though it could be had, shows nobody."""
    if any(ledger.kind(ref) is ContainerKind.INIT for ref in guessed):
        return "ordinary init containers are not in the kubelet's record"
    return "the kubelet's record shows nobody holding exactly these"


def check_unshared(
    listed: Sequence[MatchedPod],
    resource: Resource,
    ids: frozenset[str],
    guessed: Sequence[ContainerRef],
) -> None:
    """Veto an ordinary init container whose places another pod's container holds too (K15).

    Args:
        listed: what ``List`` showed; nobody in it holds exactly *ids*.
        resource: of what.
        ids: the device IDs of the container that is about to start.
        guessed: whom the ledger has for exactly these, mere guesses left out.

    Raises:
        GrantError: naming some of the places.
    """
    others: set[str] = set()
    for each in listed:
        if not _may_be_of(each, resource, len(ids), guessed):
            held = (one.held.get(resource, _NOTHING) for one in each.listed.containers)
            others |= ids.intersection(_NOTHING.union(*held))
    check_free(resource, others)


def _may_be_of(
    each: MatchedPod, resource: Resource, size: int, guessed: Sequence[ContainerRef]
) -> bool:
    """Return whether the container about to start may be an ordinary init container of a pod.

    Its places go on to the later containers of that pod (K7). Whoever has ended holds nothing.
    """
    if each.view is None or each.view.terminal:
        return True
    if guessed:
        return any(ref.pod.key == each.pod.key for ref in guessed)
    return any(
        one.kind is ContainerKind.INIT and count_of(one.demand, resource) == size
        for one in each.view.demand.containers
    )


def apply_record(
    ledger: Ledger, ref: ContainerRef, held: Mapping[Resource, frozenset[str]]
) -> list[Correction]:
    """Assign all that a container holds by the kubelet's record, and to no other container.

    To be called before the container starts: it has been given all it asks for by then.

    Returns:
        The guesses that were wrong. What else those containers hold is left to their own proof.
    """
    wrong: list[Correction] = []
    for resource, ids in sorted(held.items()):
        guessed = ledger.find(resource, ids)
        if ref in guessed:
            ledger.prove(ref, resource)
            continue
        for each in guessed:
            if ledger.kind(each) is not ContainerKind.INIT:
                wrong.append(Correction(resource, ids, each, ref))
                ledger.release(each, resource)
        ledger.give_way(ref, resource, ids)
        ledger.assign(ref, ContainerKind.MAIN, resource, Holding(ids, Evidence.RECORD, proven=True))
    return wrong


def assign_listed(ledger: Ledger, each: MatchedPod) -> None:
    """Assign what ``List`` shows a pod holding where nobody holds any of it."""
    for container in each.listed.containers:
        ref = ContainerRef(each.pod, container.name)
        for resource, ids in sorted(container.held.items()):
            if ledger.holding(ref, resource) is None and ledger.held(resource).isdisjoint(ids):
                holding = Holding(ids, Evidence.RECORD, proven=True)
                ledger.assign(ref, ContainerKind.MAIN, resource, holding)


def holds_nothing(ledger: Ledger, snapshot: Snapshot, pod: PodId, view: PodView | None) -> bool:
    """Return whether a pod that the API does not show as live holds nothing by ``List`` either.

    Kubelets before 1.34 list pods that have ended for as long as the API server has them,
    without devices (K8). One that was deleted by force is listed until it has ended (K20); as it
    may still be being admitted, only what ``List`` has shown before can be missing from it.

    Args:
        ledger: what it holds, as far as the agent knows.
        snapshot: what ``List`` showed.
        pod: the pod.
        view: what the API tells of it; ``None`` when that is nothing.
    """
    listed = [entry for entry in snapshot.pods if entry.key == pod.key]
    if not listed:
        return True
    shown = {each for entry in listed for each in entry.each_held()}
    holdings = [
        (resource, held)
        for ref in ledger.pod_refs(pod)
        for resource in Resource
        if (held := ledger.holding(ref, resource)) is not None
    ]
    assigned = {(resource, each) for resource, held in holdings for each in held.ids}
    proven = any(held.proven for _, held in holdings)
    return shown.isdisjoint(assigned) and (view is not None or proven)


def unshown(
    ledger: Ledger, snapshot: Snapshot, pods: Iterable[PodId]
) -> dict[tuple[ContainerRef, Resource], Holding]:
    """Find what was guessed to be these pods' and ``List`` does not show, but for init containers.

    Args:
        ledger: who holds what.
        snapshot: what ``List`` showed.
        pods: the pods.
    """
    shown = {each for entry in snapshot.pods for each in entry.each_held()}
    return {
        (ref, resource): held
        for pod in pods
        for ref in ledger.pod_refs(pod)
        if ledger.kind(ref) is not ContainerKind.INIT
        for resource in Resource
        if (held := ledger.holding(ref, resource)) is not None
        and not held.proven
        and all((resource, each) not in shown for each in held.ids)
    }


def check_start(
    ledger: Ledger, table: DeviceTable, ref: ContainerRef, view: PodView | None
) -> None:
    """Veto a container whose devices contradict each other or its request.

    Raises:
        GrantError: saying what contradicts what.
    """
    container = view.demand.of(ref.container) if view is not None else None
    grants = {resource: grant_of(ledger, table, ref, resource) for resource in Resource}
    if container is not None:
        for grant in grants.values():
            if grant is not None:
                check_request(container.demand, grant)
    check_together(grants[Resource.CORE], grants[Resource.MEMORY])


def check_wishes(
    table: DeviceTable, resource: Resource, ids: frozenset[str], view: PodView
) -> None:
    """Veto a container whose cards its pod's author has ruled out.

    They were not known when the card was chosen: neither watch nor API had shown the pod.

    Raises:
        GrantError: naming the cards and the annotations.
    """
    ruled_out = []
    for card in translate(resource, table.read(resource, ids)).cards:
        found = table.inventory.card(card)
        key = view.wishes.excludes(model=found.model, uuid=found.uuid) if found else ""
        if key:
            ruled_out.append(f"{card} by {key}")
    if ruled_out:
        raise GrantError(
            f"cards that the pod's annotations rule out: {', '.join(ruled_out)}; the pod was not "
            "known when they were chosen: delete it, and its successor is placed anew"
        )
