"""One container, placed as if its pod had no other."""

from collections.abc import Sequence

from placement.capacity import CardState, Need, explain, fitting_cards
from placement.errors import NoPlacement
from placement.scoring import Policy, best_whole, rank_for_share
from placement.topology import Links


def place(
    need: Need,
    states: Sequence[CardState],
    *,
    links: Links,
    policy: Policy = Policy.BINPACK,
    fixed: Sequence[str] = (),
    must: Sequence[str] = (),
) -> tuple[str, ...]:
    """Choose the cards of one container.

    Args:
        need: what it needs.
        states: all cards, in any order.
        links: how they are connected.
        policy: which card a share prefers.
        fixed: cards it is bound to already, by its other resource or by a plan.
        must: cards of which it must take places (``must_include``).

    Returns:
        Card UUIDs by index.

    Raises:
        NoPlacement: nothing fits; says for each card why not.
    """
    fitting = fitting_cards(need, states, fixed=fixed, must=must)
    bound = {*fixed, *must}
    known = {state.uuid for state in fitting}
    if len(fitting) < need.demand.cards or len(bound) > need.demand.cards or not bound <= known:
        raise NoPlacement(explain(need, states, fixed=fixed, must=must))
    if need.demand.is_share:
        return (rank_for_share(need, fitting, states, links=links, policy=policy)[0].uuid,)
    return best_whole(need, fitting, states, links=links, must=bound)
