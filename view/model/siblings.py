"""Pods of one owner: which have been replaced, and how often they were refused. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from view.model.pods import PodFacts
from view.model.reports import PodReport, Stage
from view.model.words import elapsed

_NOT_ADMITTED = (Stage.PENDING, Stage.STARTING, Stage.REFUSED)

_Owner = tuple[str, str]


class _Newest(NamedTuple):
    """When the newest pods of an owner were created; empty if there are none."""

    created: str
    admitted: str  # of those that their node did not refuse


def repeated(pods: Sequence[PodReport]) -> str:
    """Return how often pods of one owner were refused, one after the other; else empty."""
    refused = [each.created for each in pods if each.stage is Stage.REFUSED and each.created]
    if not refused or min(refused) == max(refused):
        return ""
    return f"refused {len(refused)} times in {elapsed(min(refused), max(refused))}"


class OwnedPods:
    """The pods of each owner, by namespace and owner: those of all revisions of a Deployment."""

    def __init__(self) -> None:
        """Start without pods."""
        self._pods: dict[_Owner, dict[str, PodReport]] = {}  # by UID
        self._newest: dict[_Owner, _Newest] = {}  # computed

    def put(self, facts: PodFacts) -> None:
        """Add or update a pod; one without an owner is ignored."""
        pod = facts.report
        if pod.owner:
            self._pods.setdefault((pod.namespace, pod.owner), {})[pod.uid] = pod
            self._newest.pop((pod.namespace, pod.owner), None)

    def drop(self, facts: PodFacts) -> None:
        """Remove a pod."""
        owner = (facts.report.namespace, facts.report.owner)
        pods = self._pods.get(owner, {})
        pods.pop(facts.report.uid, None)
        self._newest.pop(owner, None)
        if not pods:
            self._pods.pop(owner, None)

    def is_replaced(self, pod: PodReport) -> bool:
        """Return whether a pod has ended, and its owner has created another one since.

        A refused pod is replaced only by one that its node did not refuse as well.
        """
        if not pod.owner or pod.stage not in (Stage.REFUSED, Stage.FAILED, Stage.SUCCEEDED):
            return False
        newest = self._find_newest((pod.namespace, pod.owner))
        at = newest.admitted if pod.stage is Stage.REFUSED else newest.created
        return at > pod.created

    def refused_like(self, pod: PodReport) -> list[PodReport]:
        """Return the refused pods of a refused pod's owner that have not been replaced."""
        pods = self._pods.get((pod.namespace, pod.owner), {}).values()
        return [each for each in pods if each.stage is Stage.REFUSED and not self.is_replaced(each)]

    def _find_newest(self, owner: _Owner) -> _Newest:
        found = self._newest.get(owner)
        if found is None:
            pods = self._pods.get(owner, {}).values()
            admitted = (each.created for each in pods if each.stage not in _NOT_ADMITTED)
            found = self._newest[owner] = _Newest(
                max((each.created for each in pods), default=""), max(admitted, default="")
            )
        return found
