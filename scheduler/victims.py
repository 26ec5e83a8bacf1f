"""Which pods are to be evicted for a pod that fits on no card, on which of its nodes. No I/O.

A node is looked at as it will be: without pods that end anyway, with what is kept for others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from placement.cluster.fit import fits_surely
from placement.cluster.nodes import Node
from placement.cluster.nominations import Nomination
from placement.cluster.plan import plan_pod
from placement.cluster.preemption import (
    MOST_CHECKS,
    EvictablePod,
    VictimSet,
    cost_of,
    find_victims,
    held_after,
    within_budgets,
)
from placement.errors import NoPlacement
from placement.held import HeldAmounts
from placement.pods import PodInfo
from scheduler.budgets import DisruptionBudget
from scheduler.nominations import PodStanding, Requests, add_requests
from scheduler.preemptors import Preemptor
from scheduler.state import State

_SPARE_SECONDS = 60.0
"""How long cards are kept after all have ended that leave the node; kube-scheduler tries a pod
again up to 10 s after the end of another."""
_ALL_ASKED = 100
"""Of fewer nodes kube-scheduler asks about all (``minFeasibleNodesToFind``)."""
_BY_TURNS_SECONDS = 30.0
_MOST_CHECKS = 10 * MOST_CHECKS
"""Most checks for one pod, beside those for the first set of each node. A thousand on each of 200
nodes take half a minute."""


class NodeRoom(NamedTuple):
    """A node as it will be once the pods have ended that leave it anyway.

    These are pods that are about to end, and victims of other nominations.

    Attributes:
        node: the node.
        held: what is held of its cards then, with what is kept for other pods.
        candidates: the pods that may be evicted.
        standings: of all pods of the node that a watch has shown, by UID.
        leaving: UIDs of the pods that are about to end.
        settled: when all that leave anyway have ended, Unix seconds.
    """

    node: Node
    held: HeldAmounts
    candidates: Sequence[EvictablePod]
    standings: Mapping[str, PodStanding]
    leaving: AbstractSet[str]
    settled: float

    def fits(self, pod: PodInfo, without: Sequence[EvictablePod] = ()) -> bool:
        """Return whether cards have room for a pod once *without* have ended too."""
        return fits_surely(pod.pod_class, self.node, held_after(self.held, without).free)

    def frees_as_much(self, theirs: Iterable[str], ours: Iterable[str] = ()) -> bool:
        """Return whether kube-scheduler's victims may stay, as far as the node's totals go.

        It has chosen them so that the node gets enough of everything that pods request, also
        processors and memory of the host. So *ours* and the pods that are about to end must
        request at least as much of each resource as its victims do.

        Args:
            theirs: UIDs of kube-scheduler's victims on this node; none if the totals suffice.
            ours: UIDs of the candidates that are evicted in their place.
        """
        freed, needed = self._requested([*self.leaving, *ours]), self._requested(theirs)
        return all(freed.get(name, 0) >= amount for name, amount in needed.items())

    def _requested(self, uids: Iterable[str]) -> Requests:
        return add_requests(
            self.standings[each].requests for each in uids if each in self.standings
        )


@dataclass(eq=False)
class VictimSearch:
    """Looks for victims.

    Attributes:
        refused: pods that the Eviction API has refused to evict just now, by UID; until when they
            are no victims, in seconds of the evictor's clock.
    """

    state: State
    refused: dict[str, float] = field(default_factory=dict, init=False)

    def choose(
        self,
        pod: PodInfo,
        preemptor: Preemptor,
        budgets: Callable[[], Sequence[DisruptionBudget]],
        *,
        now: float,
    ) -> tuple[NodeRoom, VictimSet] | str:
        """Choose the cheapest victims on one of the nodes.

        Args:
            pod: the pod as the watch shows it.
            preemptor: the pod as kube-scheduler asked about it.
            budgets: reads the budgets; called only if there are victims as long as none protects
                them.
            now: monotonic seconds.

        Returns:
            The node and the victims; a result, one word, if there are none.
        """
        rooms = list(self.rooms(pod.id.uid, preemptor.nodes))
        if any(
            room.fits(pod) and room.frees_as_much(preemptor.victims.get(room.node.name, ()))
            for room in rooms
        ):
            return "waits"  # for pods that end anyway
        rooms = [room for room in rooms if room.candidates and room.fits(pod, room.candidates)]
        if not rooms:
            return "none"
        if self._fits_elsewhere(pod, preemptor, now):
            return "elsewhere"
        return self._cheapest(pod, rooms, preemptor.victims, budgets()) or "budgets"

    def _fits_elsewhere(self, pod: PodInfo, preemptor: Preemptor, now: float) -> bool:
        """Return whether kube-scheduler may soon ask about a node on which the pod fits.

        Of 100 nodes or more it looks only at some in each attempt, by turns. If it has not asked
        about a node for long, another filter keeps the pod from it.
        """
        names = self.state.node_names
        if len(names) < _ALL_ASKED or now - preemptor.since > _BY_TURNS_SECONDS:
            return False
        others = sorted(names - set(preemptor.nodes))
        return any(room.fits(pod) for room in self.rooms(pod.id.uid, others))

    def rooms(self, uid: str, names: Iterable[str]) -> Iterator[NodeRoom]:
        """Look at nodes for a pod; those that are not known are left out."""
        for name in names:
            with self.state.lock:  # not for all nodes at once: requests wait for it
                room = self.room(uid, name)
            if room is not None:
                yield room

    def fits_now(self, pod: PodInfo, names: Iterable[str]) -> bool:
        """Return whether a pod fits on one of these nodes now, before any further pod has ended."""
        for name in names:
            with self.state.lock:
                allocations = self.state.allocations(name)
                if allocations is None:
                    continue
                free = self.state.snapshot_for(pod.id.uid, allocations).free
            if fits_surely(pod.pod_class, allocations.node, free):
                return True
        return False

    def room(self, uid: str, name: str) -> NodeRoom | None:
        """Look at one node for a pod, under the lock of the state; ``None`` if it is unknown."""
        allocations = self.state.allocations(name)
        if allocations is None:
            return None
        now = self.state.now()
        held, gone = self.state.held_later(uid, allocations)
        leaving = self.state.nominations.leaving(allocations.pods, now)
        priority = self.state.nominations.priority(uid)
        found = ((each, self.state.nominations.standing(each)) for each in sorted(allocations.pods))
        standings = {each: standing for each, standing in found if standing is not None}
        candidates = [
            EvictablePod(each, standing.priority, holds, standing.group)
            for each, standing in standings.items()
            if standing.priority < priority and standing.may_be_evicted
            # A pod whose cards are not known for sure, or that is still being bound, is no victim.
            if (holds := allocations.holding(each)) and self.state.node_of(each) == name
            if each not in gone and each not in self.refused
        ]
        if any(each.is_overdue(now) for each in standings.values()):
            candidates = []  # a node that does not end its pods gets no more of them to end
        settled = self._all_ended(gone & allocations.pods.keys())
        return NodeRoom(allocations.node, held, candidates, standings, leaving, settled)

    def _all_ended(self, uids: Iterable[str]) -> float:
        """Return when these have all ended, Unix seconds, if those that stay are evicted now."""
        now, standings = self.state.now(), map(self.state.nominations.standing, uids)
        return max((each.ends_by(now) for each in standings if each is not None), default=now)

    def _cheapest(
        self,
        pod: PodInfo,
        rooms: Sequence[NodeRoom],
        wanted: Mapping[str, Sequence[str]],
        budgets: Sequence[DisruptionBudget],
    ) -> tuple[NodeRoom, VictimSet] | None:
        """Return the cheapest victims of all nodes, of budgets only as many as these allow."""
        allowed = {each.key: each.allowed for each in budgets}
        best: tuple[NodeRoom, VictimSet] | None = None
        most_checks = min(MOST_CHECKS, _MOST_CHECKS // len(rooms))
        for room in rooms:
            candidates = []
            for each in room.candidates:
                standing = room.standings[each.uid]
                keys = [
                    one.key for one in budgets if one.covers(standing.namespace, standing.labels)
                ]
                if len(keys) <= 1:  # the Eviction API evicts no pod with several
                    candidates.append(each._replace(budget=keys[0] if keys else ""))
            bound = best[1].cost if best is not None else None
            found = find_victims(
                pod.pod_class,
                room.node,
                room.held,
                candidates,
                allowed=allowed,
                below=bound,
                most_checks=most_checks,
            )
            if found is not None and room.node.name in wanted:
                found = _with_totals(room, found, candidates, wanted[room.node.name], allowed)
            if found is not None and (bound is None or found.cost < bound):
                best = room, found
        return best

    def plan(
        self, pod: PodInfo, room: NodeRoom, victims: VictimSet, *, all_leave: bool
    ) -> Nomination | None:
        """Choose the cards that are kept; ``None`` if the search is given up."""
        try:
            free = held_after(room.held, victims.victims).free
            plan = plan_pod(pod, room.node, free, self.state.policy)
        except NoPlacement:
            plan = None
        if plan is None:
            return None
        cards = {
            name: tuple(sorted(room.node.cards[position].index for position in part.cards))
            for name, part in plan.items()
        }
        # Those that may be refused first: then nobody has been evicted yet.
        uids = tuple(each.uid for each in sorted(victims.victims, key=lambda it: not it.budget))
        until = int(max(room.settled, self._all_ended(uids)) + _SPARE_SECONDS)
        return Nomination(room.node.name, cards, uids, until, all_leave)


def _with_totals(
    room: NodeRoom,
    found: VictimSet,
    candidates: Sequence[EvictablePod],
    theirs: Sequence[str],
    allowed: Mapping[str, int],
) -> VictimSet | None:
    """Add kube-scheduler's own victims, unless those that were found request as much.

    Its victims may free processors or memory of the host, which are not counted here.

    Returns:
        All that must leave; ``None`` if not all of them may be evicted.
    """
    uids = {each.uid for each in found.victims}
    if room.frees_as_much(theirs, uids):
        return found
    may = {each.uid: each for each in candidates}
    if not may.keys() >= set(theirs):
        return None
    victims = tuple(may[uid] for uid in sorted(uids.union(theirs)))
    return VictimSet(cost_of(victims), victims) if within_budgets(victims, allowed) else None
