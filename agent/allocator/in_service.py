"""The pod in service: what was answered for the pod that the kubelet is admitting. Pure.

The kubelet writes its checkpoint once a container has all that it asks for (K28). What a container
was given until then nobody else knows, and ordinary init containers are not listed either (K4). So
this is the one record of our own. It survives the agent, in the file of
:mod:`agent.allocator.saved_state`: a call that is asked again after a crash is answered as before.
"""

from dataclasses import dataclass, replace

from agent.allocator.model.containers import Containers
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer to the kubelet.

    Attributes:
        container: the name of the container that was taken to be asking.
        resource: what was asked for.
        ids: the device IDs of the answer.
        evidence: how it was settled which container was asking.
        allocated: it was an ``Allocate``; otherwise a preferred call, which reserves these IDs.
    """

    container: str
    resource: Resource
    ids: frozenset[str]
    evidence: Evidence
    allocated: bool

    def is_for_same(self, other: "Answered") -> bool:
        """Return whether both are for one container and resource."""
        return (self.container, self.resource) == (other.container, other.resource)


@dataclass(frozen=True, slots=True)
class InService:
    """The pod in service, with all answers to it.

    It is void when another pod asks, or another kubelet is there; not already when the checkpoint
    has its containers: that may be overtaken by one which has not (K33).

    Attributes:
        kubelet: the life of the kubelet that was answered; another knows nothing of it.
        pod: which pod, as the API names it.
        uid: the kubelet's UID of it; empty while not known.
        confirmed: the API showed this UID before and after ``List`` first showed the name.
        answers: the answers, the last one last; at most one for a container and a resource.
    """

    kubelet: str
    pod: PodId
    uid: str
    confirmed: bool = False
    answers: tuple[Answered, ...] = ()

    @property
    def given(self) -> Containers:
        """What the containers were given by ``Allocate``."""
        given: dict[str, dict[Resource, frozenset[str]]] = {}
        for each in self.answers:
            if each.allocated:
                given.setdefault(each.container, {})[each.resource] = each.ids
        return given

    def is_pod(self, pod: PodId, uid: str) -> bool:
        """Return whether this is the pod of this ID and kubelet's UID."""
        return self.uid == uid if self.uid or uid else self.pod == pod

    def answered(self, answer: Answered) -> "InService":
        """Return this with one more answer; a reservation is over with the call after it."""
        kept = [each for each in self.answers if each.allocated and not each.is_for_same(answer)]
        return replace(self, answers=(*kept, answer))

    def without(self, answer: Answered) -> "InService":
        """Return this without an answer."""
        kept = (each for each in self.answers if not each.is_for_same(answer))
        return replace(self, answers=tuple(kept))

    def proven(self, answer: Answered) -> "InService":
        """Return this with an answer that the kubelet shows: if it was a guess, it was right."""
        if answer.evidence is not Evidence.ORDER:
            return self
        shown = replace(answer, evidence=Evidence.RECORD)
        answers = (shown if each.is_for_same(answer) else each for each in self.answers)
        return replace(self, answers=tuple(answers))
