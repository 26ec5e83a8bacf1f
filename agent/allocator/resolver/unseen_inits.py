"""Init containers of pods whose spec is not known: what they hold is kept for what follows.

``List`` never shows an ordinary init container (fact K4). Where the API has not told of a pod,
what a call for one is answered is assigned to the container that seems to come first; the next
``List`` shows that this one holds nothing. Then the places are an init container's: the kubelet
has not offered them again. Kept as such, its second resource is placed on the same card, and so is
what is handed on to the containers after it (K7). Pure but for the ledger it is given.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.resolver.resolve import Ask
from contract.allocation import Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of

_PREFIX = "init container "  # no container can have such a name


def is_unseen(container: str) -> bool:
    """Return whether a name stands for an init container whose own name is not known."""
    return container.startswith(_PREFIX)


def unseen(ledger: Ledger, pod: PodId) -> list[ContainerRef]:
    """Return what is kept for init containers of *pod* whose names are not known, in order."""
    found = [each for each in ledger.pod_refs(pod) if is_unseen(each.container)]
    return sorted(found, key=lambda each: int(each.container.removeprefix(_PREFIX)))


def keep_unseen(
    ledger: Ledger, each: MatchedPod, offered: AbstractSet[tuple[Resource, str]]
) -> None:
    """Keep for an init container what was answered for a pod and ``List`` does not show.

    Args:
        ledger: who holds what.
        each: a listed pod of which the API has told nothing.
        offered: held places that the kubelet offers again: those nobody holds.
    """
    shown = each.listed.all_held()
    for ref in ledger.pod_refs(each.pod):
        if ledger.kind(ref) is ContainerKind.INIT:
            continue
        for resource in Resource:
            held = ledger.holding(ref, resource)
            if held is None or held.proven or held.evidence is not Evidence.ORDER:
                continue
            places = {(resource, device_id) for device_id in held.ids}
            if places.isdisjoint(shown) and places.isdisjoint(offered):
                ledger.release(ref, resource)
                init = _lacking(ledger, each.pod, resource)
                if init is None:
                    number = len(unseen(ledger, each.pod)) + 1
                    init = ContainerRef(each.pod, f"{_PREFIX}{number}")
                ledger.assign(init, ContainerKind.INIT, resource, held)


def asking_unseen(ledger: Ledger, each: MatchedPod, ask: Ask) -> ContainerDemand | None:
    """Return the init container that asks for its second resource, if there is one.

    Args:
        ledger: who holds what.
        each: a listed pod of which the API has told nothing.
        ask: what a call asks for.
    """
    if any(each.listed.each_held()):
        return None  # the containers after the init containers have begun
    init = _lacking(ledger, each.pod, ask.resource)
    held = ledger.holding(init, ask.resource.other) if init is not None else None
    if init is None or held is None:
        return None
    counts = {ask.resource: ask.size, ask.resource.other: len(held.ids)}
    demand = Demand(counts[Resource.CORE], counts[Resource.MEMORY])
    return ContainerDemand(init.container, ContainerKind.INIT, 0, demand)


def name_unseen(ledger: Ledger, view: PodView) -> None:
    """Return init containers their names, once the API has told of their pod.

    What none of its init containers asks for was guessed to be this pod's, and is not.
    """
    refs = unseen(ledger, view.id)
    inits = [each for each in view.demand.containers if each.kind is ContainerKind.INIT]
    for ref in refs:
        held = {resource: ledger.holding(ref, resource) for resource in Resource}
        ledger.release_container(ref)
        fitting = [at for at, init in enumerate(inits) if _may_hold(init, held)]
        if fitting:
            init = inits[fitting[0]]
            del inits[: fitting[0] + 1]
            for resource, found in held.items():
                if found is not None:
                    _assign(ledger, ContainerRef(view.id, init.name), resource, found)


def _may_hold(init: ContainerDemand, held: Mapping[Resource, Holding | None]) -> bool:
    return all(
        found is None or len(found.ids) == count_of(init.demand, resource)
        for resource, found in held.items()
    )


def _assign(ledger: Ledger, ref: ContainerRef, resource: Resource, held: Holding) -> None:
    if ledger.holding(ref, resource) is None:
        ledger.assign(ref, ContainerKind.INIT, resource, held)


def _lacking(ledger: Ledger, pod: PodId, resource: Resource) -> ContainerRef | None:
    """Return the last unseen init container if it holds the other resource alone."""
    refs = unseen(ledger, pod)
    if not refs or ledger.holding(refs[-1], resource) is not None:
        return None
    return refs[-1]
