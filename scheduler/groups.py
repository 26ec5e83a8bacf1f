"""Filter for pods of a group: one node for each, whose cards are kept until it is bound. No I/O.

kube-scheduler asks about all pods of a PodGroup before it binds one of them, and binds all or none
(1.36, ``schedule_one_podgroup.go``). It does not report which node it has taken for one pod before
it asks about the next. So filter returns one node only, and keeps its cards: the next pod of the
group sees them as held.

They are free again when the pod is bound or gone, or some seconds after the last request about the
group: kube-scheduler does not report that it gives a group up. But if a pod of the group fits
nowhere, and the others are fewer than its ``minCount``, the next request about another pod shows
it. If kube-scheduler asks about a pod again, the pod gets new cards.

So it is for pods for which an admission check keeps cards: two of them must not be sent to one node
on which cards are kept for one.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.cluster.nominations import CardPromise, Nomination
from placement.errors import NoPlacement
from placement.pods import PodInfo
from scheduler.choice import choose_cards
from scheduler.decisions import Decisions, FilterResult
from scheduler.nominations import TOLD_SECONDS, group_of
from scheduler.protocol import ExtenderArgs
from scheduler.state import State

KEPT_ELSEWHERE = "cards of another node are kept for it"


def filter_nodes(
    state: State, decisions: Decisions, pod: PodInfo | None, args: ExtenderArgs
) -> FilterResult:
    """Return the nodes of a request on which a pod fits; of a pod of a group only the best one.

    *pod* is ``None`` if no cards are chosen for it here.
    """
    nodes, objects = args.names, args.nodes
    if pod is None:
        return decisions.filter(pod, nodes, objects)
    uid, group = pod.id.uid, group_of(args.pod)
    with state.lock:
        state.nominations.identify(pod, group)
        promised = state.nominations.promised(uid)
        if not group and not promised:
            return decisions.filter(pod, nodes, objects)
        state.nominations.prolong(group, state.now())
        found = decisions.filter(pod, nodes, objects)
        if state.nominations.find(uid) is not None:
            return found  # others are evicted for it, and its cards are kept already
        kept = _keep_best(state, decisions, pod, found.fitting)
        if kept is None:
            state.nominations.end_promise(uid)
            state.nominations.refuse(group, state.now())
            return found
        state.nominations.tell(uid, kept, state.now(), group)
    best = kept.nomination.node
    others = {name: KEPT_ELSEWHERE for name in found.fitting if name != best}
    return replace(found, fitting=(best,), failed=found.failed | others)


def _keep_best(
    state: State, decisions: Decisions, pod: PodInfo, fitting: Sequence[str]
) -> CardPromise | None:
    """Return cards on the node with the highest score; ``None`` if none fits."""
    scores = dict(zip(fitting, decisions.scores(pod, fitting), strict=True))
    for name in sorted(fitting, key=scores.__getitem__, reverse=True):
        allocations = state.allocations(name)
        if allocations is None:
            continue
        free = state.snapshot_for(pod.id.uid, allocations).free
        try:
            cards = choose_cards(state, pod, allocations, free)
        except NoPlacement:
            continue
        return CardPromise(pod, Nomination(name, cards, (), int(state.now() + TOLD_SECONDS)))
    return None
