"""Who was right: what the agent said and did, against the truth."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agent.allocator.interfaces import ContainerRef
from agent.errors import PlacementError, Refusal
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.node.judge import NamedContainer, right
from simulator.node.recording_log import LoggedDecision
from tests.in_memory.pods import Container, Pod, card_of


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be.

    Attributes:
        kind: in one word, see :class:`Judge`.
    """

    kind: str
    step: int
    text: str


@dataclass(slots=True)
class Call:
    """One call of the kubelet, and what the agent had to go by.

    Attributes:
        pod, container: whom it is made for.
        resource: of what.
        known: the agent had been shown the pod before it answered.
        seen: ``List`` could be had in this call.
        reachable: the API server had the pod throughout this call, and could be had.
        alike: containers of the pod that hold exactly the same places (K7).
        ended: pods of which nobody can know that they are not asking (K8): rejected, listed for
            the first time, and the API server has not been told.
        said: what the agent said in it.
    """

    pod: Pod
    container: Container
    resource: Resource
    known: bool = False
    seen: bool = True
    reachable: bool = True
    alike: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    said: list[LoggedDecision] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, str, Resource]:
        """What the call is for: a pod's UID, its container and the resource."""
        return self.pod.uid, self.container.name, self.resource

    def __str__(self) -> str:
        return (
            f"{self.container.count(self.resource)} {self.resource} for {self.pod.uid} "
            f"container {self.container.name} ({self.container.cores}, {self.container.memory})"
        )


class Judge:
    """Collects findings.

    Kinds: ``wrong`` another container was named, ``bystander`` one that never asked for GPUs was
    named, ``witness`` a guess was called more, ``twice`` a place was given twice, ``refused``
    a pod was refused that could have run, ``cornered`` one that fitted when it was first asked
    for, ``failed`` the agent failed instead of answering,
    ``veto`` a start was vetoed without reason, ``unproven`` one was let through without proof,
    ``wish`` a container started on a card that its author had ruled out, ``record`` a pod carries
    what is not so, ``free`` what is free is told wrongly, ``unknown`` a running container is not
    known.

    Attributes:
        remade: UIDs of two pods of one name, the second made while the first was admitted.
    """

    def __init__(self) -> None:
        self.trace: Callable[[str], None] = lambda _line: None
        self.findings: list[Finding] = []
        self.excused: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.evidence: Counter[str] = Counter()
        self.step = 0
        self.remade: list[set[str]] = []
        self._guesses: dict[tuple[str, str, Resource], ContainerRef] = {}
        self._pods: dict[str, Pod] = {}

    def meet(self, pod: Pod) -> None:
        """Know a pod, so that it can be found by what the agent calls it."""
        self._pods.update(dict.fromkeys(pod.uids, pod))

    def find(self, kind: str, text: str) -> None:
        """Record a finding."""
        self.trace(f"! step {self.step}: {kind}: {text}")
        self.findings.append(Finding(kind, self.step, text))

    # --- names ----------------------------------------------------------------------------

    def named(self, call: Call) -> bool:
        """Judge whom the agent named in one call; return whether it named another."""
        another = False
        for each in call.said:
            if each.word in ("corrected", "unproven"):
                self.verdicts[each.word] += 1
            if each.word not in ("decided", "refused", "replaced") or each.ref is None:
                continue
            if each.evidence is not None:
                self.evidence[each.evidence.value] += 1
            is_right = self._right(call, each)
            if is_right:
                self.verdicts["right"] += 1
            elif excuse := self._excuse(call, each):
                self.excused[excuse] += 1
                self.verdicts["guessed wrongly"] += 1
            elif self._earlier_alike(call, each):
                self.excused["a pod before of this name, which asked for the same"] += 1
                self.verdicts["guessed wrongly"] += 1
                continue
            elif call.seen and (call.known or call.reachable) and not self._a_guess(call, each):
                self.verdicts["wrong"] += 1
                self.find("wrong", f"{call}: {each}")
            else:
                self.verdicts["guessed wrongly"] += 1
                self._guesses[call.place] = each.ref
            if not is_right:
                another = True
                if not self._carries_out(call, each):
                    self._bystander(call, each)
            sure = call.seen and call.known and (is_right or not self._a_guess(call, each))
            if each.evidence is Evidence.WITNESS and not sure:
                self.find("witness", f"{call}: {each}")
        return another

    def _carries_out(self, call: Call, said: LoggedDecision) -> bool:
        """Return whether ``Allocate`` assigns what the call before it chose, on an excused guess.

        Nothing has come to be known between the two: the kubelet asks for the places at once.
        """
        return (
            said.evidence in (Evidence.TICKET, Evidence.ORDER)
            and said.call == "allocate"
            and said.ref is not None
            and said.ref == self._guesses.get(call.place)
        )

    def _earlier_alike(self, call: Call, said: LoggedDecision) -> bool:
        """Return whether a pod was named that had this name before and would be served the same.

        Where the watch has not told of a pod, only a GET in every call could tell the two apart.
        """
        ref = said.ref
        before = self._pods.get(ref.pod.uid) if ref is not None else None
        if ref is None or before is None or call.known or ref.pod.key != call.pod.key:
            return False
        container = next((each for each in before.containers if each.name == ref.container), None)
        return (
            said.word == "decided"
            and container is not None
            and (container.kind, container.cores, container.memory)
            == (call.container.kind, call.container.cores, call.container.memory)
            and before.wishes == call.pod.wishes
        )

    def _excuse(self, call: Call, said: LoggedDecision) -> str:
        """Return why another may be named, empty where it may not."""
        if self._carries_out(call, said):
            return "a guess carried out by its ticket"
        if self._remade(call, said):
            return "a pod of this name, one made while the other was admitted"
        return ""

    def _remade(self, call: Call, said: LoggedDecision) -> bool:
        """Return whether of two pods of one name the other was guessed, which nobody can tell.

        One was deleted while the kubelet admitted it, and the other made in this time: ``List`` has
        names alone.
        """
        guessed = said.word == "refused" or said.evidence is Evidence.ORDER
        uid = said.ref.pod.uid if said.ref is not None else ""
        return guessed and any({call.pod.uid, uid} == pair for pair in self.remade)

    @staticmethod
    def _a_guess(call: Call, said: LoggedDecision) -> bool:
        """Return whether more than one container could have been asking, for all that is known."""
        if said.ref is None or said.word == "refused":
            return False
        pod = said.ref.pod
        return pod.uid in call.ended

    @staticmethod
    def _right(call: Call, said: LoggedDecision) -> bool:
        """Return whether the container named is the one that a call is for."""
        containers = {call.container.name, *call.alike}
        pod = "/".join(call.pod.key)
        return said.ref is not None and right(
            pod, containers, call.pod.uids, NamedContainer.by(said.ref)
        )

    def _bystander(self, call: Call, said: LoggedDecision) -> None:
        ref = said.ref
        pod = self._pods.get(ref.pod.uid) if ref is not None else None
        if ref is None or pod is None:
            return
        if not (call.known or call.reachable):
            self.excused["a container of a pod whose spec nobody could tell"] += 1
            return
        if not any(each.name == ref.container and each.asks for each in pod.containers):
            self.find("bystander", f"{call}: {said}")

    # --- refusals -------------------------------------------------------------------------

    def refused(
        self,
        call: Call,
        error: Refusal,
        said: Iterable[LoggedDecision],
        *,
        fit: bool,
        fitted: bool,
        gone: bool,
        confused: bool,
    ) -> None:
        """Judge the refusal of a call.

        Args:
            call: which call.
            error: the refusal.
            said: what the agent has said in it.
            fit: whether there is a place for all that the pod still lacks.
            fitted: whether there was one when it was first asked for.
            gone: it is being deleted.
            confused: another pod was named in its calls.
        """
        cornered = not fit and fitted and isinstance(error, PlacementError)
        if not fit and not cornered:
            self.verdicts["rightly refused"] += 1
            return
        another = any(
            each.word == "refused" and each.ref is not None and not self._right(call, each)
            for each in said
        )
        if call.pod.invalid:
            self.excused["no webhook would have passed it"] += 1
        elif gone:
            self.excused["it was being deleted"] += 1
        elif not call.known and not call.reachable:
            self.excused["nobody could tell its spec"] += 1
        elif confused or another:  # which is a finding, or without List none
            self.excused["another was named in its calls"] += 1
        elif not call.seen and isinstance(error, PlacementError):
            self.excused["without List nobody can tell who was rejected"] += 1
        else:
            self.find("cornered" if cornered else "refused", f"{call}: {error}")

    # --- places ---------------------------------------------------------------------------

    def twice(self, call: Call, ids: Sequence[str], held: set[str]) -> None:
        """Judge what was given: *held* are the places of others."""
        both = sorted(held.intersection(ids))
        if both:
            self.find("twice", f"{call}: {len(both)} of {len(ids)} places, {both[0]} among them")

    def cards(self, call: Call, ids: Sequence[str], other: Collection[str]) -> None:
        """Judge the cards of what was given, with what the container holds already."""
        count = len({card_of(each) for each in ids})
        cores, memory = (ids, other) if call.resource is Resource.CORE else (other, ids)
        cards = {card_of(each) for each in cores}
        stray = {card_of(each) for each in memory} - cards
        if call.pod.invalid:
            return
        if 0 < call.container.cores < 100 and count > 1:
            self.find("split", f"{call}: a share on {count} cards")
        if cards and stray:
            self.find("split", f"{call}: memory on {sorted(stray)}, cores on {sorted(cards)}")

    def unproven(self, call: Call, said: LoggedDecision, *, overtaken: bool) -> None:
        """Judge a start without proof: the checkpoint could be read."""
        if overtaken:
            self.excused["unproven: the checkpoint is one container old (K33)"] += 1
        else:
            self.find("unproven", f"{call}: {said}")

    def started(self, pod: Pod, container: Container, cards: set[str]) -> None:
        """Judge a container that starts on these cards; the agent knows its pod."""
        against = sorted(each for each in cards if not pod.wished(each))
        if against:
            self.find("wish", f"{pod.uid} {container.name} starts on {against}: {pod.annotations}")

    def recorded(self, pod: Pod, held: dict[str, set[str]], record: dict[str, set[str]]) -> None:
        """Judge the record on a pod: container -> cards."""
        for name, cards in record.items():
            container = next((each for each in pod.containers if each.name == name), None)
            if container is None or not container.asks:
                self.find("record", f"{pod.uid} has a record for {name}, which never asked")
            elif not container.hands_on and held.get(name, cards) != cards:
                self.find("record", f"{pod.uid} {name}: on {sorted(held[name])}, told {cards}")
