"""Confirms pods: no pod that the agent has not seen can have their entry in ``List``. Pure.

``List`` has no UIDs. That is certain if the API showed the pod before ``List`` first had its name,
and still shows it afterwards; or if the watch has reported no other pod of its name since the last
identified one. The steps before and after it: docs/which-container.md.
"""

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

from agent.allocator.identity import KnownPods, kubelet_uid
from agent.allocator.resolver import LastCall
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import SnapshotPod
from placement.pods import Key


def find_confirmed(  # noqa: PLR0913 -- the sources
    snapshot: AllocationSnapshot,
    known: KnownPods,
    last_call: LastCall,
    *,
    identified: AbstractSet[str],
    names: Collection[Key],
    shown_before_list: AbstractSet[str],
    uids_seen: Callable[[Key], Sequence[str]],
) -> set[str]:
    """Return the pods that are confirmed by a reading of the API after ``List``.

    UIDs are the kubelet's, except those of *uids_seen*.

    Args:
        snapshot: the snapshot of that ``List``.
        known: the pods in the API, after the reading.
        last_call: the state kept from the last call.
        identified: pods that certainly had an entry before: none of them is a new pod.
        names: the names that were read from the API since ``List`` shows them.
        shown_before_list: the pods that the API showed before ``List``.
        uids_seen: returns the UIDs that pods with a name had, in the watch's order.
    """
    found = set[str]()
    for pod in snapshot.listed_changing:
        uids = {kubelet_uid(each) for each in known.of_name(pod.id.key)}
        if pod.id.key not in names:
            continue  # the watch may be late: only a reading rules out a newer pod of its name
        if not uids - identified <= {pod.uid}:
            continue  # another pod with its name may be the target
        # Listed since the last call, and not at a wrong guess, after which that is forgotten.
        is_new = last_call.is_new(pod, snapshot) and last_call.is_newer_than_guess(pod, snapshot)
        seen = uids_seen(pod.id.key) if pod.lacks else ()
        was_shown = pod.uid in shown_before_list and known.is_shown(pod.uid)
        is_only = {*seen} - identified <= {"", pod.id.uid}
        if is_new and not pod.shows_devices and was_shown and is_only:
            found.add(pod.uid)
        if (
            pod.lacks
            and pod.info is not None
            and _is_only_since_identified(pod, seen, identified, is_new=is_new)
        ):
            found.add(pod.uid)
    return found


def _is_only_since_identified(
    pod: SnapshotPod, seen: Sequence[str], identified: AbstractSet[str], *, is_new: bool
) -> bool:
    """Return whether a pod is the only one since the last identified pod of its name.

    Pods with one name are admitted in order (K1): no earlier one can be in ``List``.
    """
    known_at = [at for at, uid in enumerate(seen) if is_new and uid in identified]
    return list(seen[known_at[-1] + 1 if known_at else 0 :]) == [pod.id.uid]
