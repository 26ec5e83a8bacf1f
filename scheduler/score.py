"""The score of a node for a pod that fits there: 0 to 10. Pure.

It is the mean of up to three parts. The first is how full the node would be, by the resource of
which less would remain: fuller is better with ``binpack``, emptier with ``spread``. The second is,
for a container with several cards, how well they would be connected. The third is, for shares with
``binpack``, how many of their cards are already shared, so that whole cards stay whole.
"""

from functools import lru_cache

from placement.capacity import CardNeed, CardSet
from placement.cluster.fit import Fit
from placement.cluster.holdings import NodeSnapshot
from placement.pods import PodClass
from placement.scoring import Policy
from placement.search import Rows

HIGHEST = 10
"""``MaxExtenderPriority`` of kube-scheduler; the lowest is 0."""

# Quality by the worst pair of a set: half of its score in placement.topology.
_LINKS: tuple[tuple[int, float], ...] = ((100, 1.0), (50, 0.8), (40, 0.6), (30, 0.4), (20, 0.2))


def score(pod_class: PodClass, snapshot: NodeSnapshot, fit: Fit, policy: Policy) -> int:
    """Return the score of a node where :func:`placement.cluster.fit.check` has found this *fit*."""
    packing = _fullness(pod_class, snapshot)
    if policy is Policy.SPREAD:
        packing = 1 - packing
    parts = [packing]
    largest = pod_class.most_cards
    if largest is not None and largest.demand.cards > 1:
        cards = snapshot.node.card_set_for(pod_class.wishes)
        parts.append(_connection(largest, cards, snapshot.free, pod_class.wishes.link))
    if policy is Policy.BINPACK and pod_class.shares:
        parts.append(1 - min(fit.newly_shared / pod_class.shares, 1))
    return min(max(int(HIGHEST * sum(parts) / len(parts) + 0.5), 0), HIGHEST)


def _fullness(pod_class: PodClass, snapshot: NodeSnapshot) -> float:
    """Return the held part of the available cards with the pod: that of the fuller resource."""
    totals = zip(pod_class.peak, snapshot.totals, strict=True)
    return min(max([(held + more) / max(total, 1) for more, (total, held) in totals]), 1.0)


def _connection(need: CardNeed, cards: CardSet, free: Rows, link: str) -> float:
    """Return how well the best set of cards would be connected, 0 to 1."""
    fitting = tuple(cards.fitting(free, need))
    return _quality(cards, need.demand.cards, fitting, link)


@lru_cache(maxsize=16384)
def _quality(cards: CardSet, size: int, fitting: tuple[int, ...], link: str) -> float:
    best = cards.links.best(size, fitting, free=frozenset(fitting), link=link)
    worst, _ = cards.links.quality(best)
    return next((float(part) for least, part in _LINKS if worst // 2 >= least), 0.0)
