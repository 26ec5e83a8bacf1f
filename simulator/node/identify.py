"""Which pod each listed entry is, from all pods at once: what an index has to agree with."""

from collections.abc import Iterable, Mapping

from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.model.podresources import MatchedPod, Snapshot, match_entries
from contract.resource import Resource


def identify(
    snapshot: Snapshot,
    views: Iterable[PodView],
    owners: Mapping[tuple[Resource, str], PodId],
) -> tuple[MatchedPod, ...]:
    """Find out which pod each listed entry is.

    Args:
        snapshot: what ``List`` showed.
        views: the pods known from the API.
        owners: which pod each held device ID was given to, from the ledger.

    Returns:
        One entry per listed pod, sorted by pod.
    """
    by_key: dict[Key, list[PodView]] = {}
    for view in views:
        by_key.setdefault(view.id.key, []).append(view)
    return match_entries(snapshot.pods, lambda key: by_key.get(key, ()), owners)
