"""The ledger brought in line with the kubelet's record. Pure but for the ledger it is given."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.podresources import MatchedPod
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource


def reconcile(  # noqa: PLR0913 -- what one call of the kubelet brings, by keyword
    ledger: Ledger,
    identified: Sequence[MatchedPod],
    *,
    resting: AbstractSet[PodId] = frozenset(),
    finished: AbstractSet[PodId] = frozenset(),
    live: AbstractSet[PodId] = frozenset(),
    offered: AbstractSet[tuple[Resource, str]] = frozenset(),
    named: AbstractSet[tuple[Resource, str]] = frozenset(),
) -> list[Correction]:
    """Make the ledger equal to the kubelet's record.

    To be called with a ``List`` taken while no ``Allocate`` is in flight, that is from
    within a preferred call: then what ``List`` does not show of a listed pod is not
    held, except for ordinary init containers, which it never shows (fact K4).

    A kubelet that has just restarted lists only the pods it has come to so far, though
    its checkpoint still counts the devices of all (K11). So a pod that is not listed
    keeps what it holds while the API shows it live, unless the kubelet offers its places.

    Args:
        ledger: who holds what.
        identified: what ``List`` shows.
        resting: other pods that it shows, known to hold in the ledger what it shows.
        finished: pods that hold nothing any more though they may be listed (K8).
        live: pods that the API shows bound here and not finished.
        offered: places the kubelet offers for anybody in this call.
        named: places it has chosen itself, maybe of the same pod's init containers (K7).

    Returns:
        The guesses that turned out wrong.
    """
    truth: dict[tuple[ContainerRef, Resource], frozenset[str]] = {}
    listed = {*resting, *(each.pod for each in identified)}
    present = (listed | live) - finished
    # What is assigned already need not be assigned again.
    settled = {
        *resting,
        *(each.pod for each in identified if each.pod not in finished and ledger.agrees(each)),
    }
    for each in identified:
        if each.pod in settled:
            continue
        for container in each.listed.containers:
            for resource, ids in container.held.items():
                if ids:
                    truth[ContainerRef(each.pod, container.name), resource] = ids
    if ledger.has_nameless:
        # A pod that is listed without a UID is none of those that the API shows.
        strangers = {each.pod.key for each in identified if not each.pod.uid}
        ledger.adopt_names({each for each in present if each.key not in strangers})
    _take_back(ledger, offered, named, listed)
    corrections = _corrections(ledger, truth, settled)
    _forget_unseen(ledger, truth, present, listed, settled)
    for (ref, resource), ids in sorted(truth.items()):
        held = ledger.holding(ref, resource)
        if held is not None and held.ids == ids:
            ledger.prove(ref, resource)
        else:
            ledger.give_way(ref, resource, ids)
            kind = ledger.kind(ref) if ledger.holds(ref) else ContainerKind.MAIN
            ledger.assign(ref, kind, resource, Holding(ids, Evidence.RECORD, proven=True))
    ledger.note_listed(listed, live)
    return corrections


def _take_back(
    ledger: Ledger,
    offered: AbstractSet[tuple[Resource, str]],
    named: AbstractSet[tuple[Resource, str]],
    listed: AbstractSet[PodId],
) -> None:
    """Forget what ``List`` does not speak of and the kubelet offers all the same.

    That is whatever pods hold that are not listed, and the ordinary init containers of
    those that are (K4): a kubelet that died while serving one does so again. One that was
    answered lives: what it offers of these all the same, it has forgotten (K15).
    Containers, not pods: the kubelet writes its checkpoint once a container has all it
    asks for, so one that died in between still counts the pod's earlier containers. Of a
    pod that is being served again one resource, which is the one that it is served with.
    """
    offered = offered & ledger.owners.keys()
    either = offered | (named & ledger.owners.keys())
    for pod in sorted({ledger.owners[each] for each in either}):
        if pod not in listed:
            ledger.take_back(pod, either)
            continue
        for ref in ledger.pod_refs(pod):
            if ledger.kind(ref) is ContainerKind.INIT:
                for resource in ledger.given_back(ref, offered):
                    held = ledger.holding(ref, resource)
                    if held is not None and not held.answered:
                        ledger.release(ref, resource)


def _corrections(
    ledger: Ledger,
    truth: Mapping[tuple[ContainerRef, Resource], frozenset[str]],
    settled: AbstractSet[PodId],
) -> list[Correction]:
    found = []
    for (ref, resource), ids in sorted(truth.items()):
        for guessed in ledger.find(resource, ids):
            wrong = guessed != ref and ledger.kind(guessed) is not ContainerKind.INIT
            wrong = wrong and guessed.pod not in settled
            if wrong and truth.get((guessed, resource)) != ids:
                found.append(Correction(resource, ids, guessed, ref))
    return found


def _forget_unseen(
    ledger: Ledger,
    truth: Mapping[tuple[ContainerRef, Resource], frozenset[str]],
    present: AbstractSet[PodId],
    listed: AbstractSet[PodId],
    settled: AbstractSet[PodId],
) -> None:
    for ref in [ref for pod in ledger.pods - settled for ref in ledger.pod_refs(pod)]:
        for resource in Resource:
            held = ledger.holding(ref, resource)
            if held is None:
                continue
            if ledger.kind(ref) is ContainerKind.INIT or ref.pod not in listed:
                keep = ref.pod in present
            else:
                keep = truth.get((ref, resource)) == held.ids
            if not keep:
                ledger.release(ref, resource)
