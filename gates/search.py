"""Whether all pods of a workload find cards, on the nodes that its flavors select. No I/O.

Pods are placed one after the other, the largest first, each on its best node, as the extender
scores nodes. Each is checked and placed by the search of ``placement``, as extender and agent do
it. So an answer that they fit is right; that they do not fit may be too strict, if another
distribution over the nodes would do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contract.text import format_count
from gates.state import NodeTerms
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node
from placement.cluster.nominations import CardPromise, Nomination, kept_amounts
from placement.cluster.plan import plan_pod
from placement.cluster.workloads import Flavor, PodSet, Workload
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import Rows
from scheduler.score import score

_MOST_TRIES = 20_000
_MOST_REASONS = 4


@dataclass(frozen=True, slots=True)
class Room:
    """A node for new pods.

    Attributes:
        node: the node.
        free: what new pods find free of each card, by its position.
        terms: what else decides whether a pod may get it.
    """

    node: Node
    free: Rows
    terms: NodeTerms


@dataclass(frozen=True, slots=True)
class Shortage:
    """Some pods of a workload find no cards; *reason* is text for its author."""

    reason: str


Answer = Mapping[str, Sequence[CardPromise]] | Shortage


@dataclass(eq=False)
class WorkloadSearch:
    """The search for the pods of one workload; used once.

    Attributes:
        rooms: all nodes.
        flavors: all ResourceFlavors by name.
        policy: how a share's card is chosen; the agents' too.
        node_policy: which node a pod prefers.
    """

    rooms: Iterable[Room]
    flavors: Mapping[str, Flavor]
    policy: Policy = Policy.BINPACK
    node_policy: Policy = Policy.BINPACK
    _rooms: dict[str, Room] = field(default_factory=dict, init=False)

    def place(self, workload: Workload, needed: Callable[[PodSet], int], until: int) -> Answer:
        """Place all pods that a workload still needs, so many of each pod set, or none."""
        self._rooms = {each.node.name: each for each in self.rooms}
        found: dict[str, list[CardPromise]] = {}
        sets = [(each, each.pod, needed(each)) for each in workload.pod_sets if not each.topology]
        for pod_set, pod, count in sorted(sets, key=lambda each: _size(each[1]), reverse=True):
            if pod is None or not count:
                continue
            placed = found[pod_set.name] = self._place_all(pod_set, pod, count, until)
            if len(placed) < count:
                return Shortage(self._why(pod_set, pod, len(placed), count))
        return found

    def _place_all(
        self, pod_set: PodSet, pod: PodInfo, count: int, until: int
    ) -> list[CardPromise]:
        selection, placed = pod_set.selection(self.flavors), list[CardPromise]()
        scores = {
            name: self._score(pod, room)
            for name, room in self._rooms.items()
            if not room.terms.problem
            and not selection.excludes(name, room.terms.labels, room.terms.taints)
        }
        while len(placed) < count:
            fitting = {name: each for name, each in scores.items() if each is not None}
            if not fitting:
                break
            name = max(sorted(fitting), key=fitting.__getitem__)
            kept = self._take(pod, name, until)
            if kept is None:
                scores[name] = None
                continue
            placed.append(kept)
            scores[name] = self._score(pod, self._rooms[name])
        return placed

    def _score(self, pod: PodInfo, room: Room) -> int | None:
        snapshot = NodeSnapshot(room.node, room.free)
        fit = check(pod.pod_class, snapshot)
        if isinstance(fit, Unschedulable):
            return None
        wish = pod.wishes.node_policy
        return score(pod.pod_class, snapshot, fit, Policy(wish) if wish else self.node_policy)

    def _take(self, pod: PodInfo, name: str, until: int) -> CardPromise | None:
        room = self._rooms[name]
        try:
            plan = plan_pod(pod, room.node, room.free, self.policy, most_tries=_MOST_TRIES)
        except NoPlacement:
            plan = None
        if plan is None:
            return None
        cards = {
            container: tuple(sorted(room.node.cards[position].index for position in each.cards))
            for container, each in plan.items()
        }
        nomination = Nomination(name, cards, (), until)
        free = list(room.free)
        for position, amounts in kept_amounts(pod, nomination, room.node).items():
            free[position] = free[position].minus(amounts)
        self._rooms[name] = Room(room.node, tuple(free), room.terms)
        return CardPromise(pod, nomination)

    def _why(self, pod_set: PodSet, pod: PodInfo, placed: int, count: int) -> str:
        """Return why the next pod fits nowhere: nodes by reason, as kube-scheduler reports them."""
        selection, reasons = pod_set.selection(self.flavors), Counter[str]()
        for name, room in self._rooms.items():
            excluded = room.terms.problem or selection.excludes(
                name, room.terms.labels, room.terms.taints
            )
            fit = check(pod.pod_class, NodeSnapshot(room.node, room.free))
            text = excluded or (fit.reason if isinstance(fit, Unschedulable) else "")
            reasons[text or "the search for cards was given up"] += 1
        parts = [
            f"{format_count(number, 'node')}: {text}"
            for text, number in reasons.most_common(_MOST_REASONS)
        ]
        more = [f"{len(reasons) - _MOST_REASONS} other reasons"] * (len(reasons) > _MOST_REASONS)
        where = f" of pod set {pod_set.name}" * (pod_set.name != "main")
        found = "; ".join([*parts, *more]) or "there are no nodes"
        return f"cards for {placed} of {format_count(count, 'pod')}{where}: {found}"


def _size(pod: PodInfo | None) -> tuple[int, ...]:
    """Return a sort key: whole cards are larger than shares, then more memory is larger."""
    if pod is None or not pod.pod_class.needs:
        return ()
    largest = max(pod.pod_class.needs, key=lambda need: (*need.per_card, need.demand.cards))
    return (*largest.per_card, largest.demand.cards)
