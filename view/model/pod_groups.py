"""Pods of one owner: shown as one group, replaced by newer ones, refused again and again. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NamedTuple

from view.model.pod_facts import PodFacts
from view.model.reports import DeniedReport, PodReport, Stage
from view.model.words import duration

_NOT_ADMITTED = (Stage.PENDING, Stage.STARTING, Stage.REFUSED)
_LEFT = (Stage.REFUSED, Stage.FAILED)

_Owner = tuple[str, str]


class _Newest(NamedTuple):
    """When the newest pods of an owner were created; empty if there are none."""

    created: str
    admitted: str  # of those that their node did not refuse


def repeated(pods: Sequence[PodReport]) -> str:
    """Return how often pods of one owner were refused, one after the other; else empty."""
    created = (each.created for each in pods if each.stage is Stage.REFUSED and each.created)
    times = sorted(map(datetime.fromisoformat, created))
    if not times or times[0] == times[-1]:
        return ""
    return f"refused {len(times)} times in {duration(times[-1] - times[0])}"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of one owner with equal requests and the same reason."""

    pods: Annotated[tuple[PodReport, ...], "the oldest first."]

    @property
    def name(self) -> str:
        """Name of the group: its owner, or its first pod."""
        first = self.pods[0]
        if len(self.pods) == 1:
            return f"{first.namespace}/{first.name}"
        if first.owner:
            kind, _, name = first.owner.partition("/")
            pods = repeated(self.pods) or f"{len(self.pods)} pods"
            return f"{kind} {first.namespace}/{name}: {pods}"
        return f"{first.namespace}/{first.name} and {len(self.pods) - 1} more"

    @property
    def headline(self) -> str:
        """The group, its stage and its reason in one line."""
        stage = "" if repeated(self.pods) else f" {self.pods[0].stage.value}"
        return f"{self.name}{stage}: {self.why}"

    @property
    def why(self) -> str:
        """The reason; of pods that are refused again and again, the newest one and its cause."""
        if not repeated(self.pods):
            return self.pods[0].why
        newest = self.pods[-1]
        cause = f"{newest.scheduler} does not see cards" if newest.misplaced else ""
        return "; ".join(filter(None, (cause, newest.why)))


def group_pods(pods: Sequence[PodReport]) -> list[PodGroup]:
    """Group pods by owner, requests and reason; the group with the oldest pod comes first.

    Refused pods of an owner are one group whatever the reason: it names cards that change.
    """
    groups: dict[tuple[object, ...], list[PodReport]] = {}
    for pod in sorted(pods, key=lambda each: (each.created, each.namespace, each.name)):
        requests = tuple((each.cores, each.blocks, each.split) for each in pod.containers)
        again = pod.owner and pod.stage is Stage.REFUSED
        why = "" if again else pod.why.replace(pod.name, "")
        groups.setdefault((pod.namespace, pod.owner, requests, why), []).append(pod)
    return [PodGroup(tuple(each)) for each in groups.values()]


_URGENT = (
    *(Stage.PENDING, Stage.REFUSED, Stage.FAILING, Stage.STARTING),
    *(Stage.FAILED, Stage.RUNNING, Stage.SUCCEEDED),
)
"""Stages, those that need an explanation most first."""


def is_of(pod: PodReport | DeniedReport, kind: str, name: str) -> bool:
    """Return whether a pod, or a denied workload, belongs to the workload of this kind and name.

    A Deployment's pods have the names of its ReplicaSets, and a CronJob's Jobs end in a number.
    """
    if isinstance(pod, DeniedReport):
        return is_of_owner(f"{pod.kind}/{pod.name}", kind, name)
    if kind == "ReplicaSet":
        return controller_of(pod) == f"{kind}/{name}"
    return is_of_owner(pod.owner, kind, name)


def controller_of(pod: PodReport) -> str:
    """Return the owner of a pod; of a Deployment's pod its ReplicaSet, by the pod's name."""
    if pod.owner.startswith("Deployment/"):
        return f"ReplicaSet/{pod.name.rpartition('-')[0]}"
    return pod.owner


def is_of_owner(owner: str, kind: str, name: str) -> bool:
    """Return whether the controller of pods, such as ``Job/train``, is or belongs to a workload."""
    if owner == f"{kind}/{name}":
        return True
    of, _, own = owner.partition("/")
    base, _, last = own.rpartition("-")
    made = {"CronJob": "Job", "Deployment": "ReplicaSet"}
    return made.get(kind) == of and base == name and (kind != "CronJob" or last.isdecimal())


def most_urgent(pods: Sequence[PodReport]) -> PodReport:
    """Return the pod that needs an explanation most: the oldest one in the worst stage.

    If pods are refused again and again, that is the last of them: the next one has only just come.
    """
    refused = [each for each in pods if each.stage is Stage.REFUSED and not each.replaced]
    if repeated(refused):
        return max(refused, key=lambda each: (each.created, each.name))
    return min(
        pods,
        key=lambda each: (each.replaced, _URGENT.index(each.stage), each.created, each.name),
    )


class OwnedPods:
    """The pods of each owner, by namespace and owner: those of all revisions of a Deployment."""

    def __init__(self) -> None:
        self._pods: dict[_Owner, dict[str, PodReport]] = {}  # by UID
        self._newest: dict[_Owner, _Newest] = {}  # computed
        self._settled: dict[_Owner, str] = {}  # by controller: until which creation none counts

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
        of = (facts.report.namespace, controller_of(facts.report))
        if of in self._settled and not any(controller_of(each) == of[1] for each in pods.values()):
            del self._settled[of]

    def is_replaced(self, pod: PodReport) -> bool:
        """Return whether a pod has ended, and its owner has created another one since.

        A refused pod is replaced only by one that its node did not refuse as well, also one of the
        same second: times are whole seconds, and a controller tries again until it has all.
        """
        if not pod.owner or pod.stage not in (Stage.REFUSED, Stage.FAILED, Stage.SUCCEEDED):
            return False
        owner = (pod.namespace, pod.owner)
        newest = self._find_newest(owner)
        settled = self._settled.get((pod.namespace, controller_of(pod)))
        if pod.stage in _LEFT and settled is not None and pod.created <= settled:
            return True
        if pod.stage is Stage.REFUSED:
            return bool(newest.admitted) and newest.admitted >= pod.created
        return newest.created > pod.created

    def left_over(self) -> set[tuple[str, str]]:
        """Return namespace and :func:`controller_of` refused and failed pods, not replaced."""
        return {
            (each.namespace, controller_of(each))
            for pods in self._pods.values()
            for each in pods.values()
            if each.stage in _LEFT and not self.is_replaced(each)
        }

    def settle(self, namespace: str, controller: str, wanted: int) -> bool:
        """Count refused and failed pods as replaced if as many run as their controller wants.

        Later ones count again. Return whether so many run.
        """
        pods = [
            each
            for (of, _), owned in self._pods.items()
            for each in owned.values()
            if of == namespace and controller_of(each) == controller
        ]
        if sum(each.stage is Stage.RUNNING for each in pods) < wanted:
            return False
        left = (each.created for each in pods if each.stage in _LEFT)
        self._settled[namespace, controller] = max(left, default="")
        return True

    def refused_like(self, pod: PodReport) -> list[PodReport]:
        """Return the refused pods of a pod's owner that have not been replaced."""
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
