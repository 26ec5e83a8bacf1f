"""How good a node is for a pod that fits there: 0 to 10. Pure.

Three things count. How full the node would be: fuller is better with ``binpack``, emptier with
``spread``; full is the resource of which least is left. Whether cards that are whole
stay whole, with ``binpack``: a share had better go where a begun card has room. And how well the
cards of a set would be connected.
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

# By the worst pair of a set, half of what placement.topology says it is worth.
_LINKS: tuple[tuple[int, float], ...] = ((100, 1.0), (50, 0.8), (40, 0.6), (30, 0.4), (20, 0.2))


def score(shape: PodClass, snapshot: NodeSnapshot, fit: Fit, policy: Policy) -> int:
    """Return the score of a node.

    Args:
        shape: of the pod.
        snapshot: the node on which it fits.
        fit: as :func:`placement.cluster.fit.check` returned it.
        policy: over nodes.
    """
    packing = _fullness(shape, snapshot)
    if policy is Policy.SPREAD:
        packing = 1 - packing
    parts = [packing]
    largest = shape.most_cards
    if largest is not None and largest.demand.cards > 1:
        cards = snapshot.node.card_set_for(shape.wishes)
        parts.append(_connection(largest, cards, snapshot.free, shape.wishes.link))
    elif policy is Policy.BINPACK and shape.shares:
        parts.append(1 - min(fit.newly_shared / shape.shares, 1))
    return min(max(int(HIGHEST * sum(parts) / len(parts) + 0.5), 0), HIGHEST)


def _fullness(shape: PodClass, snapshot: NodeSnapshot) -> float:
    """Return how much of the healthy cards would be taken: of that resource of which it is most."""
    totals = zip(shape.peak, snapshot.totals, strict=True)
    return min(max([(used + asked) / max(places, 1) for asked, (places, used) in totals]), 1.0)


def _connection(need: CardNeed, cards: CardSet, free: Rows, link: str) -> float:
    """Return how well the best set would be connected, 0 to 1."""
    fitting = tuple(cards.fitting(free, need.per_card))
    return _quality(cards, need.demand.cards, fitting, link)


@lru_cache(maxsize=16384)
def _quality(cards: CardSet, size: int, fitting: tuple[int, ...], link: str) -> float:
    best = cards.links.best(size, fitting, free=frozenset(fitting), link=link)
    worst, _ = cards.links.quality(best)
    return next((float(part) for least, part in _LINKS if worst // 2 >= least), 0.0)
