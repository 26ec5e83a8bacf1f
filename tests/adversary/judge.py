"""Compare the agent's decisions and actions with the true state."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.errors import PlacementError, Refusal
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.node.judge import NamedContainer, right
from simulator.node.recording_log import LoggedDecision
from tests.in_memory.pods import Container, Pod, card_of


@dataclass(frozen=True, slots=True)
class Finding:
    """An error of the agent; :class:`Judge` has the kinds."""

    kind: str
    step: int
    text: str


@dataclass(slots=True)
class Call:
    """One call of the kubelet, and what the agent could know in it.

    Attributes:
        pod, container: the true target.
        known: whether the watch had delivered the pod to the agent before its response.
        seen: whether ``List`` was available in this call.
        reachable: whether the API server was available and had the pod during the whole call.
        alike: containers of the pod that hold exactly the same device IDs (K7).
        ended: pods that the agent cannot distinguish from the target (K8): they were rejected,
            are listed for the first time, and the API server does not have their new status yet.
    """

    pod: Pod
    container: Container
    resource: Resource
    known: bool = False
    seen: bool = True
    reachable: bool = True
    alike: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    decisions: list[LoggedDecision] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, Resource]:
        return self.pod.uid, self.container.name, self.resource

    def __str__(self) -> str:
        return (
            f"{self.container.count(self.resource)} {self.resource} for {self.pod.uid} "
            f"container {self.container.name} ({self.container.cores}, {self.container.memory})"
            f"{f' over {self.container.split} cards' if self.container.split > 1 else ''}"
        )


class Judge:
    """Collects findings.

    Their kinds:

    - ``wrong``: the agent named another container than the target;
    - ``bystander``: it named a container that requests no GPUs;
    - ``witness``: it reported a guess with evidence ``witness``;
    - ``twice``: a device was allocated twice;
    - ``split``: cores, or a share's memory, are not the same part of each requested card, or cores
      and memory are on different cards;
    - ``refused``: a pod was refused although it fits;
    - ``cornered``: a pod was refused that fitted at its first call;
    - ``failed``: the agent raised an error instead of a response;
    - ``veto``: a start was refused without reason;
    - ``unproven``: a start was permitted without proof;
    - ``wish``: a container started on a card that its author excluded;
    - ``record``: a pod's allocation annotation is wrong;
    - ``free``: the reported number of free slots is wrong;
    - ``unknown``: the agent does not know a running container.

    Attributes:
        excused: wrong decisions that the agent could not avoid, by excuse.
        step: the number of the current admission.
        remade: pairs of UIDs of two pods with the same name; the second was created while the
            kubelet admitted the first.
        remade_beside: UIDs of pods that were created while the kubelet admitted a pod of another
            name, or before the first one that calls a new agent, and ``List`` still showed a pod
            of theirs; with the number of that admission.
    """

    def __init__(self) -> None:
        self.trace: Callable[[str], None] = lambda _line: None
        self.findings: list[Finding] = []
        self.excused: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.evidence: Counter[str] = Counter()
        self.step = 0
        self.remade: list[set[str]] = []
        self.remade_beside: dict[str, int] = {}
        self._guesses: dict[tuple[str, str, Resource], ContainerRef] = {}
        self._pods: dict[str, Pod] = {}

    def add_pod(self, pod: Pod) -> None:
        """Add a pod, so that the judge can find it by the UIDs in the agent's decisions."""
        self._pods.update(dict.fromkeys(pod.uids, pod))

    def find(self, kind: str, text: str) -> None:
        self.trace(f"! step {self.step}: {kind}: {text}")
        self.findings.append(Finding(kind, self.step, text))

    # --- names ----------------------------------------------------------------------------

    def named(self, call: Call) -> bool:
        """Judge the containers that the agent named in a call; return whether one was wrong."""
        another = False
        for each in call.decisions:
            if each.word in ("corrected", "unproven"):
                self.verdicts[each.word] += 1
            if each.word not in ("decided", "refused", "replaced") or each.ref is None:
                continue
            if each.evidence is not None:
                self.evidence[each.evidence.value] += 1
            is_right = self.right(call, each)
            if is_right:
                self.verdicts["right"] += 1
            elif excuse := self._excuse(call, each):
                self.excused[excuse] += 1
                self.verdicts["guessed wrongly"] += 1
            elif self._earlier_alike(call, each):
                self.excused["an earlier pod of this name with the same requests"] += 1
                self.verdicts["guessed wrongly"] += 1
                continue
            elif call.seen and (call.known or call.reachable) and not self._is_guess(call, each):
                self.verdicts["wrong"] += 1
                self.find("wrong", f"{call}: {each}")
            else:
                self.verdicts["guessed wrongly"] += 1
                self._guesses[call.key] = each.ref
            if not is_right:
                another = True
                if not self._carries_out(call, each):
                    self._bystander(call, each)
            sure = call.seen and call.known and (is_right or not self._is_guess(call, each))
            if each.evidence is Evidence.WITNESS and not sure:
                self.find("witness", f"{call}: {each}")
        return another

    def _carries_out(self, call: Call, decision: LoggedDecision) -> bool:
        """Return whether ``Allocate`` repeats an excused guess of the preferred call before it.

        The agent learned nothing between the two calls, because the kubelet makes them in a row.
        """
        return (
            decision.evidence in (Evidence.TICKET, Evidence.ORDER)
            and decision.call == "allocate"
            and decision.ref is not None
            and decision.ref == self._guesses.get(call.key)
        )

    def _earlier_alike(self, call: Call, decision: LoggedDecision) -> bool:
        """Return whether the named pod had the same name before, and gets the same devices.

        Until the watch delivers the new pod, only a GET in every call could distinguish the two.
        """
        ref = decision.ref
        before = self._pods.get(ref.pod.uid) if ref is not None else None
        if ref is None or before is None or call.known or ref.pod.key != call.pod.key:
            return False
        container = next((each for each in before.containers if each.name == ref.container), None)
        return (
            decision.word == "decided"
            and container is not None
            and (container.kind, container.demand) == (call.container.kind, call.container.demand)
            and before.wishes == call.pod.wishes
        )

    def _excuse(self, call: Call, decision: LoggedDecision) -> str:
        """Return the excuse for a wrong container, empty if there is none."""
        if self._carries_out(call, decision):
            return "a guess repeated by its ticket"
        if self._remade(call, decision):
            return "another pod of this name, created while the first was admitted"
        if self._remade_beside(decision):
            return "a pod whose name was listed, created in the same admission"
        return ""

    def _remade(self, call: Call, decision: LoggedDecision) -> bool:
        """Return whether the agent guessed the wrong one of two pods with the same name.

        The first was deleted and the second created while the kubelet admitted the first. ``List``
        has only names, so the agent cannot distinguish them.
        """
        guessed = decision.word == "refused" or decision.evidence is Evidence.ORDER
        uid = decision.ref.pod.uid if decision.ref is not None else ""
        return guessed and any({call.pod.uid, uid} == pair for pair in self.remade)

    def _remade_beside(self, decision: LoggedDecision) -> bool:
        """Return whether the agent guessed a pod that was created in the present admission.

        Its name is listed since the last call that the agent knows of, and so is the target's: as
        with a new kubelet. With the old form of ``List`` the target may be a rejected pod.
        """
        uid = decision.ref.pod.uid if decision.ref is not None else ""
        guessed = decision.word == "refused" or decision.evidence is Evidence.ORDER
        return guessed and self.remade_beside.get(uid) == self.step

    @staticmethod
    def _is_guess(call: Call, decision: LoggedDecision) -> bool:
        """Return whether several containers could be the target, as far as the agent can know."""
        if decision.ref is None or decision.word == "refused":
            return False
        pod = decision.ref.pod
        return pod.uid in call.ended

    @staticmethod
    def right(call: Call, decision: LoggedDecision) -> bool:
        """Return whether the named container is the target of the call."""
        containers = {call.container.name, *call.alike}
        pod = "/".join(call.pod.key)
        return decision.ref is not None and right(
            pod, containers, call.pod.uids, NamedContainer.by(decision.ref)
        )

    def _bystander(self, call: Call, decision: LoggedDecision) -> None:
        ref = decision.ref
        pod = self._pods.get(ref.pod.uid) if ref is not None else None
        if ref is None or pod is None:
            return
        if not (call.known or call.reachable):
            self.excused["a container of a pod whose spec the agent could not know"] += 1
            return
        if not any(each.name == ref.container and each.requests_gpus for each in pod.containers):
            self.find("bystander", f"{call}: {decision}")

    # --- refusals -------------------------------------------------------------------------

    def refused(
        self,
        call: Call,
        error: Refusal,
        decisions: Iterable[LoggedDecision],
        *,
        fit: bool,
        fitted: bool,
        deleted: bool,
        unadvised: bool,
        confused: bool,
    ) -> None:
        """Judge the refusal of a call.

        *fit*: everything that the pod still needs fits now; *fitted*: the pod fitted at its first
        call; *unadvised*: a part was placed while the agent could not know its wishes; *confused*:
        the agent named another pod in calls for this one.
        """
        cornered = not fit and fitted and isinstance(error, PlacementError)
        if not fit and not cornered:
            self.verdicts["rightly refused"] += 1
            return
        another = any(
            each.word == "refused" and each.ref is not None and not self.right(call, each)
            for each in decisions
        )
        if call.pod.invalid:
            self.excused["the webhook would have denied it"] += 1
        elif deleted:
            self.excused["it was being deleted"] += 1
        elif not call.known and not call.reachable:
            self.excused["the agent could not know its spec"] += 1
        elif cornered and unadvised:
            self.excused["a part was placed while its wishes could not be known"] += 1
        elif confused or another:  # that is a finding of its own, or excused without List
            self.excused["another was named in its calls"] += 1
        elif not call.seen and isinstance(error, PlacementError):
            self.excused["without List the agent cannot know the rejected pods"] += 1
        else:
            self.find("cornered" if cornered else "refused", f"{call}: {error}")

    # --- devices --------------------------------------------------------------------------

    def twice(self, call: Call, ids: Sequence[str], held: set[str]) -> None:
        """Judge allocated device IDs; *held* are those that other containers hold."""
        both = sorted(held.intersection(ids))
        if both:
            self.find("twice", f"{call}: {len(both)} of {len(ids)} devices, such as {both[0]}")

    def cards(
        self, call: Call, ids: Sequence[str], other: Collection[str], *, advised: bool
    ) -> None:
        """Judge cards, with the IDs held of the *other* resource; *advised*: the pod was known."""
        cores, memory = (ids, other) if call.resource is Resource.CORE else (other, ids)
        cards = {card_of(each) for each in cores}
        stray = {card_of(each) for each in memory} - cards
        if call.pod.invalid:
            return
        if advised:
            self.parts(call, ids)
        elif not call.container.is_divided(call.resource, ids):
            self.excused["its number of cards could not be known"] += 1
        if cards and stray:
            self.find("split", f"{call}: memory on {sorted(stray)}, cores on {sorted(cards)}")

    def parts(self, call: Call, ids: Sequence[str]) -> None:
        if not call.pod.invalid and not call.container.is_divided(call.resource, ids):
            self.find("split", f"{call}: {sorted(Counter(map(card_of, ids)).values())}")

    def unproven(self, call: Call, decision: LoggedDecision, *, overtaken: bool) -> None:
        if overtaken:
            self.excused["unproven: the checkpoint is one container old (K33)"] += 1
        else:
            self.find("unproven", f"{call}: {decision}")

    def started(
        self, pod: Pod, container: Container, held: Mapping[Resource, Collection[str]]
    ) -> None:
        """Judge the devices of a starting container whose pod the agent knows."""
        cards = {card_of(each) for ids in held.values() for each in ids}
        if not pod.invalid and not all(container.is_divided(*each) for each in held.items()):
            self.find("split", f"{pod.uid} {container.name} starts on {sorted(cards)}")
        against = sorted(each for each in cards if not pod.wished(each))
        if against:
            self.find("wish", f"{pod.uid} {container.name} starts on {against}: {pod.annotations}")

    def annotated(
        self, pod: Pod, held: dict[str, set[str]], annotation: dict[str, set[str]]
    ) -> None:
        for name, cards in annotation.items():
            container = next((each for each in pod.containers if each.name == name), None)
            if container is None or not container.requests_gpus:
                self.find("record", f"{pod.uid}: annotation for {name}, which requests no GPUs")
            elif not container.hands_on and held.get(name, cards) != cards:
                text = f"{pod.uid} {name}: on {sorted(held[name])}, annotation has {cards}"
                self.find("record", text)
