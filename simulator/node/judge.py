"""Who was right: each ``Allocate`` of the kubelet against what the agent said in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from contract.allocation import Evidence
from contract.resource import Resource
from simulator.kubelet.trace import TraceEvent
from simulator.node.diary import Said


class Verdict(StrEnum):
    """How an answer compares with the truth."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Admission:
    """One ``Allocate``: what the kubelet made it for, and what became of it.

    Attributes:
        event: the call, as the kubelet's trace has it.
        evidence: by what; ``None`` when it answered nothing.
        error: what the kubelet was told instead of an answer.
    """

    resource: Resource
    event: TraceEvent
    verdict: Verdict
    evidence: Evidence | None
    error: str = ""

    @property
    def pod(self) -> str:
        """The namespace and name of the pod it was made for."""
        return f"{self.event.namespace}/{self.event.pod}"


def judge(
    event: TraceEvent, resource: Resource, diary: Iterable[Said], *, mirrors: Mapping[str, str]
) -> Admission:
    """Compare one ``Allocate`` with what the agent said while it was in flight.

    *mirrors* has, by UID of a static pod, the UID under which the API shows it.
    """
    if event.error:
        return Admission(resource, event, Verdict.REFUSED, None, event.error)
    ids = frozenset(event.ids)
    said = next(
        (
            each
            for each in diary
            if event.ms <= each.at_ms <= event.ms + event.took_ms + 1.0
            and each.resource is resource
            and each.ids == ids
        ),
        None,
    )
    if said is None or said.ref is None:
        return Admission(resource, event, Verdict.WRONG, None, "the agent said nothing")
    # The agent knows no UID of a pod that only the kubelet has left.
    same = said.ref.pod.key == (event.namespace, event.pod)
    same = same and said.ref.pod.uid in (event.pod_uid, mirrors.get(event.pod_uid), "")
    right = same and said.ref.container == event.container
    return Admission(resource, event, Verdict.RIGHT if right else Verdict.WRONG, said.evidence)
