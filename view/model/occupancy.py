"""What pods hold on one node, and what is free. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Annotated

from contract.demand import CORES_PER_CARD, ContainerKind
from contract.inventory import NOTHING, Amounts
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot, PodCards, held_by_container, known_cards
from placement.cluster.node_allocations import NodeAllocations
from placement.cluster.nodes import Node, Problem
from placement.cluster.nominations import Nomination, kept_amounts
from placement.held import HeldAmounts, HeldByPosition, add_up
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from view.model.node_facts import NodeFacts
from view.model.reports import MAY_REFUSE, REFUSES
from view.model.words import name_some

CORDONED = "the node is cordoned"
NOT_READY = "the node is not Ready"


@dataclass(frozen=True, slots=True)
class KeptCards:
    """Cards of a node that are kept for a pod, for which others are evicted."""

    pod: Annotated[PodInfo, "the pod, which is not bound yet."]
    priority: Annotated[int, "its priority; pods of a higher one may take the cards."]
    nomination: Annotated[Nomination, "the cards, and the pods that are evicted."]


@dataclass(frozen=True, slots=True)
class NodeRefusals:
    """Pods that an agent refused because of its node, after the last one that it admitted."""

    reason: Annotated[str, "what is wrong with the node, as the agent words it, of the last one."]
    count: Annotated[int, "number of these pods."]
    at: Annotated[str, "when the last of them was bound to the node."]
    last: Annotated[
        bool,
        "whether it would refuse pods now, too; false if that is unknown, as the last one is not "
        "of the last minutes, or the agent has started since.",
    ] = True

    def __str__(self) -> str:
        """Return what is known of the next pods, and why."""
        return f"{REFUSES if self.last else MAY_REFUSE}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PodHolding:
    """What one pod holds on its node."""

    pod: Annotated[PodInfo, "the pod."]
    cards: Annotated[
        PodCards, "cards of each container, how they are known, and which are missing."
    ]
    parts: Annotated[
        Sequence[tuple[str, int, Amounts]],
        "container, position of the card, and amounts. Devices that an init container left "
        "reusable count for the container that reuses them (fact K7). A whole card counts with "
        "all its blocks: the kubelet may count fewer, but nothing else can get them.",
    ]
    taken: Annotated[HeldByPosition, "the sum of these, by card."]


def _holding(pod: PodInfo, cards: PodCards, sizes: Sequence[Amounts]) -> PodHolding:
    """Divide what a pod holds among its containers; init containers come last."""
    held = held_by_container(pod.demand, cards)
    taken = dict(add_up((at, amounts) for (_, at), amounts in held.items()))
    found = []
    inits_last = sorted(pod.demand.containers, key=lambda each: each.kind is ContainerKind.INIT)
    for container in inits_last:
        for at in cards[container.name].positions if container.name in cards else ():
            mine = held[container.name, at]
            if not container.demand.is_share and taken[at].cores >= CORES_PER_CARD:
                rest = Amounts(0, max(sizes[at].memory - taken[at].memory, 0))
                mine, taken[at] = mine.plus(rest), taken[at].plus(rest)
            if any(mine):
                found.append((container.name, at, mine))
    return PodHolding(pod, cards, found, taken)


@dataclass(frozen=True)
class Occupancy:
    """A node and what pods hold on it."""

    facts: Annotated[NodeFacts, "the node."]
    held: Annotated[
        Mapping[str, PodHolding], "holdings by UID of the pod, sorted by namespace and name."
    ]
    unseen: Annotated[
        tuple[Amounts, ...],
        "for each card, what the agent reports as held by pods that may not be read.",
    ]
    leaving: Annotated[
        Mapping[str, str], "when pods that are being deleted are to have ended, by UID."
    ] = field(default_factory=dict)
    kept: Annotated[
        tuple[KeptCards, ...], "cards that are kept for pods, and not counted as held."
    ] = ()
    refusals: Annotated[NodeRefusals | None, "because of the node; ``None`` for none."] = None
    kept_for: Annotated[str, "pods of which kept cards are counted as held; empty for none."] = ""
    without_kept: Annotated[
        "Occupancy | None", "the node as it is without what is kept for other pods, if it differs."
    ] = None

    @cached_property
    def used(self) -> HeldAmounts:
        """The held amounts of each card; they may exceed the card."""
        used = HeldAmounts(self.facts.node.sizes, self.unseen)
        for each in self.held.values():
            used = used.add(each.taken)
        return used

    @cached_property
    def snapshot(self) -> NodeSnapshot:
        """The node and its free amounts, for placement."""
        return NodeSnapshot(self.facts.node, self.used.free)

    def refusal(self, shape: PodClass) -> Unschedulable | None:
        """Return why a pod does not fit; ``None`` if it fits.

        Checks cards and whether the node is cordoned, not Ready, or refuses pods; what the pod's
        own spec excludes is :func:`view.model.node_fits.excluded_by`.
        """
        if why := self._out_of_service:
            return Unschedulable(why, unresolvable=True)
        result = check(shape, self.snapshot)
        if not isinstance(result, Unschedulable):
            return self._refusal_by_counts(shape)
        if result.reason == self.facts.node.problem.value:
            return result._replace(reason=self.facts.problem)
        if self.without_kept is not None and self.without_kept.refusal(shape) is None:
            return result._replace(reason=f"{result.reason}: cards are kept for {self.kept_for}")
        return result

    @property
    def _out_of_service(self) -> str:
        """Why no pod is to come to the node, whatever its cards have; empty if pods may come."""
        if self.facts.cordoned:
            return CORDONED
        if self.facts.not_ready:
            return f"{NOT_READY} ({self.facts.not_ready})"
        if self.facts.problem and not self.facts.node.problem:
            return self.facts.problem
        return "" if self.refusals is None else str(self.refusals)

    def uncordoned(self) -> "Occupancy":
        """Return the node as if it were not cordoned: the kubelet does not look at that."""
        return replace(self, facts=replace(self.facts, cordoned=False))

    def at_best(self) -> "Occupancy":
        """Return the node as if its agent refused no pods, if that is unknown."""
        unknown = self.refusals is not None and not self.refusals.last
        return replace(self, refusals=None) if unknown else self

    def without(self, uids: AbstractSet[str]) -> "Occupancy":
        """Return the node as if the pods with these UIDs held nothing."""
        held = {uid: each for uid, each in self.held.items() if uid not in uids}
        return self if len(held) == len(self.held) else replace(self, held=held)

    @cached_property
    def stranded(self) -> Mapping[str, str]:
        """What is wrong with the cards of pods that hold some which the node does not count.

        By UID: ``missing``, ``unhealthy`` or ``cordoned``. kube-scheduler counts per node (K24):
        such pods take from the amounts of the cards that are left.
        """
        cards, found = self.facts.node.cards, dict[str, str]()
        for uid, each in self.held.items():
            held = [cards[at] for own in each.cards.values() for at in own.positions]
            if any(own.lost for own in each.cards.values()):
                found[uid] = "missing"
            elif any(card.unhealthy for card in held):
                found[uid] = "unhealthy"
            elif any(card.cordoned for card in held):
                found[uid] = "cordoned"
        return found

    def _refusal_by_counts(self, shape: PodClass) -> Unschedulable | None:
        """Return why too little is free in all for kube-scheduler, if stranded pods are why."""
        if not self.stranded or self.facts.serves_claims:
            return None
        total = Amounts(*(all_ for all_, _ in self.snapshot.totals))
        counted = {uid: each.pod.pod_class.peak for uid, each in self.held.items()}
        left_over = [amounts for uid, amounts in counted.items() if uid in self.stranded]
        others = [amounts for uid, amounts in counted.items() if uid not in self.stranded]
        needed = reduce(Amounts.plus, (*others, *self.unseen), shape.peak)
        if not total.covers(needed) or total.covers(reduce(Amounts.plus, left_over, needed)):
            return None
        pods = [
            f"pod {self.held[uid].pod}, whose card is {why}" for uid, why in self.stranded.items()
        ]
        what = ": delete it" if [*self.stranded.values()] == ["missing"] else ""
        reason = f"kube-scheduler still counts {name_some(pods)}{what}"
        return Unschedulable(reason, unresolvable=False)

    def as_found_by(self, uid: str, priority: int | None, now: float) -> "Occupancy":
        """Return the node as one pod finds it: without what is kept for others, as the extender.

        What is kept is in part still held by pods that are being evicted. So a card has free what
        is free now and also once they are gone. Its priority may be unknown: then all is kept. If
        cards are kept for the pod itself, its victims are leaving.
        """
        own = [each for each in self.kept if each.pod.id.uid == uid]
        leaving = {victim: "" for each in own for victim in each.nomination.victims}
        found = replace(self, leaving={**leaving, **self.leaving}) if own else self
        others = tuple(
            each
            for each in self.kept
            if each not in own
            and each.nomination.until > now
            and (priority is None or each.priority >= priority)
        )
        if not others:
            return found
        victims = {uid for each in others for uid in each.nomination.victims}
        base = found.without(victims)
        freed = self.used.subtract(dict(enumerate(base.used.held)))
        wanted = HeldAmounts.none_held(self.facts.node.sizes)
        for each in others:
            wanted = wanted.add(kept_amounts(each.pod, each.nomination, self.facts.node))
        pairs = enumerate(zip(freed.held, wanted.held, strict=True))
        more = {at: Amounts(*map(max, *pair)) for at, pair in pairs}
        rest = tuple(each for each in self.kept if each not in others)
        names = name_some([str(each.pod) for each in others])
        return replace(base.reserve(more), kept=rest, kept_for=names, without_kept=found)

    def with_usable(self, position: int) -> "Occupancy":
        """Return the node as if a card were healthy and not cordoned."""
        cards = [*self.facts.node.cards]
        cards[position] = replace(cards[position], unhealthy="", cordoned=False)
        return self._with(self.facts.node.with_cards(tuple(cards)))

    def connected(self) -> "Occupancy":
        """Return the node as if its agent were connected."""
        return self._with(replace(self.facts.node, problem=Problem.NONE))

    def _with(self, node: Node) -> "Occupancy":
        return replace(self, facts=replace(self.facts, node=node))

    def reserve(self, more: HeldByPosition) -> "Occupancy":
        """Return the node as if pods that do not exist yet held *more* on its cards."""
        held = HeldAmounts(self.facts.node.sizes, self.unseen).add(more).held
        other = self.without_kept.reserve(more) if self.without_kept else None
        return replace(self, unseen=held, without_kept=other)


def occupancy_of(
    facts: NodeFacts, pods: Iterable[PodInfo], policy: Policy, *, partial: bool
) -> Occupancy:
    """Compute what the pods bound to a node hold on it.

    If not all pods may be read (*partial*), what the agent reports as held counts too.
    """
    node = facts.node
    allocations = NodeAllocations(node.name, policy)
    allocations.set_node(node)
    active = sorted((pod for pod in pods if not pod.terminal), key=lambda pod: pod.id)
    for pod in active:
        allocations.add_pod(pod)
    simulated = allocations.simulate()
    held = {}
    for pod in active:
        cards = simulated.get(pod.id.uid)
        if cards is None and node.cards:
            cards = known_cards(pod, node)
        if cards is not None:
            held[pod.id.uid] = _holding(pod, cards, node.sizes)
    found = Occupancy(facts, held, (NOTHING,) * len(node.cards))
    if not partial:
        return found
    rows = zip(node.sizes, facts.inventory.free, found.used.held, strict=True)
    return replace(found, unseen=tuple(size.minus(free).minus(held) for size, free, held in rows))
