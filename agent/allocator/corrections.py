"""Corrects the current pod's assignments by checkpoint and ``List`` (R6). Pure.

Only guesses are corrected. An assignment that was no guess is right even if an entry of another pod
shows its slots: the entry of an ended pod may stay (K29) or come back (K33).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import KnownPods, kubelet_uid
from agent.allocator.interfaces import (
    Checkpoint,
    CheckpointOwner,
    Correction,
    ListedContainer,
    ListedPod,
)
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import Offered, SnapshotPod
from agent.holdings.holding import ContainerRef
from contract.demand import ContainerKind
from contract.resource import Resource
from placement.pods import PodId, PodInfo


def correct_by_checkpoint(
    current: CurrentPod,
    before: Checkpoint,
    now: Checkpoint,
    *,
    may_be_new: Callable[[CheckpointOwner, Resource, frozenset[str]], bool],
    pods: KnownPods,
) -> tuple[CurrentPod, list[Correction]]:
    """Return the current pod without the guesses that the checkpoint shows with other containers.

    *before* is the checkpoint of the last reading. *may_be_new* returns whether an entry may be new
    in the checkpoint.
    """
    found: list[Correction] = []
    result = current
    for each in current.assignments:
        owners = now.owners(each.resource, each.ids) if each.is_guess else []
        if (current.uid, each.container) in owners:
            continue  # another container may hold the same (K7)
        old = before.owners(each.resource, each.ids)
        for owner in owners:
            info = pods.by_uid(owner.pod_uid)
            if owner.pod_uid == current.uid and _is_init(info, owner.container):
                continue  # the init container's slots were reused (K7)
            same_name = not current.uid and info is not None and info.id.key == current.id.key
            if same_name and owner.container == each.container:
                continue  # it is the current pod, whose UID was not known
            if owner not in old and may_be_new(owner, each.resource, each.ids):
                pod = info.id if info is not None else PodId("", "", owner.pod_uid)
                found.append(_correction(current, each, ContainerRef(pod, owner.container)))
                result = result.without(each)
    return result, found


def correct_by_list(
    current: CurrentPod, snapshot: AllocationSnapshot
) -> tuple[CurrentPod, list[Correction]]:
    """Return the current pod, corrected by ``List``.

    A guess that the pod's own entry shows is proven. A guess that this entry or another pod's entry
    contradicts is dropped. If the entry contradicts an assignment that was no guess, the kubelet
    has freed the pod: all assignments are dropped.
    """
    found: list[Correction] = []
    result = current
    for each in current.assignments:
        if not each.allocated:
            continue
        for pod, one in _walk_listed(snapshot.changing):
            has = one.held.get(each.resource) == each.ids
            if current.is_pod(pod.id, pod.uid) and one.name == each.container:
                if not has and not each.is_guess:
                    return replace(current, assignments=()), found
                if not has:
                    result = result.without(each)
                elif pod.sure:  # List has no UIDs: the entry may be another pod's with this name
                    result = result.proven(each.container, each.resource)
            elif has and each.is_guess and pod.info is None and current.is_pod(pod.id, pod.uid):
                result = result.moved(each, one.name)
        for pod, one in _walk_listed(snapshot.pods) if each.is_guess else ():
            has = one.held.get(each.resource) == each.ids
            if has and not current.is_pod(pod.id, pod.uid):
                result = result.without(each)
                found.append(_correction(current, each, ContainerRef(pod.id, one.name)))
    return result, found


def correct_by_offer(
    current: CurrentPod, offered: Offered, checkpoint: Checkpoint, snapshot: AllocationSnapshot
) -> CurrentPod:
    """Return the current pod without the guesses whose slots the kubelet offers again.

    Their slots went to another container, whose pod has been rejected since. Slots that checkpoint
    or ``List`` shows are held even if they are offered (K15). So without ``List`` none is dropped.
    """
    for each in current.assignments if snapshot.listing else ():
        if (
            each.is_guess
            and each.ids <= offered.get(each.resource, frozenset())
            and not checkpoint.owners(each.resource, each.ids)
            and not any(
                one.held.get(each.resource) == each.ids for _, one in _walk_listed(snapshot.pods)
            )
        ):
            current = current.without(each)
    return current


def _walk_listed(pods: Iterable[SnapshotPod]) -> Iterator[tuple[SnapshotPod, ListedContainer]]:
    for pod in pods:
        if pod.listed is not None:
            for one in pod.listed.containers:
                yield pod, one


def _is_init(info: PodInfo | None, container: str) -> bool:
    container_demand = info.demand.of(container) if info is not None else None
    return container_demand is not None and container_demand.kind is ContainerKind.INIT


def _correction(current: CurrentPod, wrong: Assignment, right: ContainerRef) -> Correction:
    guessed = ContainerRef(current.id, wrong.container)
    return Correction(wrong.resource, wrong.ids, guessed, right)


def is_disproved(was: CurrentPod, now: CurrentPod, snapshot: AllocationSnapshot) -> bool:
    """Return whether the guessed pod was wrong, and not only the container within it.

    If an assignment that was no guess was dropped, the kubelet has freed the pod, so the pod was
    right.
    The spec of a pod may be unknown; then an init container of it may hold the slots (K4).
    """
    lost = [
        each
        for each in was.assignments
        if not any(each.is_for_same(one) for one in now.assignments)
    ]
    if not all(each.is_guess for each in lost):
        return False
    entries = [each for each in snapshot.listed_changing if was.is_pod(each.id, each.uid)]
    unknown = any(each.info is None for each in entries)
    return any(
        not _is_shown(each, entries) and (not unknown or _is_shown(each, snapshot.pods))
        for each in lost
    )


def _is_shown(assignment: Assignment, pods: Iterable[SnapshotPod]) -> bool:
    return any(each.shows_exactly(assignment.resource, assignment.ids) for each in pods)


def with_uid(  # noqa: PLR0913 -- the sources
    current: CurrentPod,
    before: Checkpoint,
    now: Checkpoint,
    *,
    entries: Iterable[ListedPod],
    pods: KnownPods,
    identified: AbstractSet[str],
) -> CurrentPod:
    """Return the current pod with its UID, once the checkpoint or the API shows it.

    *before* is the checkpoint of the last reading. *identified* are the UIDs of pods that certainly
    had an entry when the current pod had no UID.
    """
    if not current.uid:
        by_file = _identify_by_checkpoint(current, before, now, entries, pods)
        return by_file or _identify_by_api(current, now, entries, pods, identified) or current
    info = pods.by_uid(current.uid)  # the mirror of a static pod may have appeared
    if info is None and current.uid not in now.pods:  # the entry was a rejected pod's (K33)
        return _identify_by_checkpoint(current, before, now, entries, pods) or current
    if info is None or info.id == current.id:
        return current
    return replace(current, id=info.id)


def _identify_by_checkpoint(
    current: CurrentPod,
    before: Checkpoint,
    now: Checkpoint,
    entries: Iterable[ListedPod],
    pods: KnownPods,
) -> CurrentPod | None:
    """Return the current pod with the UID under which the checkpoint has one of its assignments.

    The entry of an ended pod may have the same slots (K29). That is excluded if the entry is new,
    or if ``List`` shows the container with exactly these slots: an agent that has just started
    cannot tell whether an entry is new. A new entry may be another pod's than a guess, unless
    ``List`` shows a part of it with the name.
    """
    shown = {
        one.name: one.held
        for each in entries
        if each.key == current.id.key
        for one in each.containers
    }
    for each in current.assignments:
        old = before.owners(each.resource, each.ids)
        for owner in now.owners(each.resource, each.ids):
            uid, name = owner
            held, listed = now.pods[uid][name], shown.get(name, {})
            is_named = not each.is_guess or any(listed.get(one) == held[one] for one in held)
            proven = (owner not in old and is_named) or listed == held
            info = pods.by_uid(uid)
            if (
                proven
                and name == each.container
                and (info is None or info.id.key == current.id.key)
            ):
                pod = info.id if info is not None else PodId(*current.id.key, uid)
                return replace(current, id=pod, uid=uid)
    return None


def _identify_by_api(
    current: CurrentPod,
    now: Checkpoint,
    entries: Iterable[ListedPod],
    pods: KnownPods,
    identified: AbstractSet[str],
) -> CurrentPod | None:
    """Return the current pod as the only pod of the API that matches; ``None`` without one.

    A pod matches if its containers request what was assigned, and no other entry was its. A deleted
    one may still be admitted (K20), but only if none with its name that the API shows matches.
    """
    same_name = [entry for entry in entries if entry.key == current.id.key]
    infos = [
        each
        for each in pods.of_name(current.id.key)
        if kubelet_uid(each) not in identified
        and not each.terminal
        and any(entry.may_be(each) for entry in same_name)
    ]
    shown = [each for each in infos if pods.is_shown(kubelet_uid(each))]
    if len(shown) > 1 or not current.assignments:
        return None
    found = [_as_pod(current, each, now) for each in shown]
    if found in ([], [None]):
        found = [_as_pod(current, each, now) for each in infos if each not in shown]
    matching = [each for each in found if each is not None]
    return matching[0] if len(matching) == 1 else None


def _as_pod(current: CurrentPod, info: PodInfo, now: Checkpoint) -> CurrentPod | None:
    """Return the current pod as this pod; ``None`` if that requests other amounts."""
    uid = kubelet_uid(info)
    found: list[Assignment] = []
    for each in current.assignments:  # only now the pod's containers are known
        lacking = (
            one.name
            for one in info.demand.containers
            if now.pods.get(uid, {}).get(one.name, {}).get(each.resource) in {None, each.ids}
            and each.resource.count_in(one.demand) == len(each.ids)
            and all((one.name, each.resource) != (it.container, it.resource) for it in found)
        )
        name = next(lacking, None)
        if name is None:
            return None
        found.append(replace(each, container=name))
    return replace(current, id=info.id, uid=uid, assignments=tuple(found))


def is_of_another_pod(corrections: Sequence[Correction]) -> bool:
    """Return whether a correction certainly names another pod than the guessed one.

    A pod that only ``List`` shows has no known UID, and a pod that only the checkpoint shows has no
    known name: two such may be the same pod.
    """
    pods = [(each.guessed.pod, each.proven.pod) for each in corrections]
    return any(
        right != guessed if guessed.uid else right.name and right.key != guessed.key
        for guessed, right in pods
    )


def find_proven(
    guessed: CurrentPod,
    corrections: Sequence[Correction],
    entries: Iterable[ListedPod],
    snapshot: AllocationSnapshot,
) -> PodId | None:
    """Return the pod for which the guessed calls certainly were, by the kubelet's UID.

    *entries* are those of ``List``. ``None`` if the corrections prove no single pod, or do not say
    that the newest call was for it.
    """
    proven = {each.proven.pod for each in corrections}
    newest = guessed.assignments[-1:]
    if len(proven) != 1:
        return None
    (pod,) = proven
    if not pod.name:  # the API does not show it any more; it may have the guessed pod's name
        return (
            PodId(*guessed.id.key, pod.uid)
            if any(guessed.is_shown_by(entry) for entry in entries)
            else None
        )
    found = snapshot.pod(pod)
    if found is None or not any(each.ids == its.ids for each in corrections for its in newest):
        return None
    return found.kubelet_id


def as_proven(
    guessed: CurrentPod, corrections: Sequence[Correction], checkpoint: Checkpoint, pods: KnownPods
) -> CurrentPod | None:
    """Return the pod that a correction proves, with all that was given to the guessed one.

    The kubelet admits one pod at a time (K1), so calls in a row for one guess were for one pod.
    ``None`` if that pod is not known, or does not request all of it.
    """
    proven = {each.proven.pod for each in corrections}
    info = pods.find(next(iter(proven))) if len(proven) == 1 else None
    if info is None or not all(each.is_guess for each in guessed.assignments):
        return None
    return _as_pod(guessed, info, checkpoint)
