"""Finds the cards of a pod on a node, by the search of ``placement``. Pure."""

from collections.abc import Mapping, Sequence

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import RESOURCES
from placement.capacity import CardSet, need_of
from placement.cluster.nodes import Node
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import MOST_TRIES, ContainerPlan, ContainerStep, Plan, Rows, make_plan


def plan_pod(  # noqa: PLR0913 -- all inputs of a plan, by keyword
    pod: PodInfo,
    node: Node,
    free: Rows,
    policy: Policy,
    *,
    fixed: Mapping[str, Sequence[int]] | None = None,
    most_tries: int = MOST_TRIES,
) -> Plan | None:
    """Place all containers of a pod as the agent does, by *policy* if its author has no wish.

    In *fixed* are the positions of cards that containers have already, by container name.

    Returns:
        The plan, by container name; ``None`` if the search gave up after *most_tries* placements.

    Raises:
        NoPlacement: there is no plan.
    """
    if not node.cards:
        raise NoPlacement("no cards")
    wishes = pod.wishes
    containers = pod.demand.containers
    steps = steps_of(containers, wishes.link, fixed)
    policy = Policy(wishes.policy) if wishes.policy else policy
    found = search(steps, node.card_set_for(wishes), free, policy, most_tries)
    if found is None:
        return None
    return {each.name: part for each, part in zip(containers, found, strict=True)}


def steps_of(
    containers: Sequence[ContainerDemand],
    link: str,
    fixed: Mapping[str, Sequence[int]] | None = None,
) -> Sequence[ContainerStep]:
    """Return the steps of a search; *fixed* has the cards that containers have already."""
    return [
        ContainerStep(
            each,
            need_of(each.demand),
            frozenset([one for one in RESOURCES if one.count_in(each.demand)]),
            fixed=tuple((fixed or {}).get(each.name, ())),
            link=link,
        )
        for each in containers
    ]


def search(
    steps: Sequence[ContainerStep],
    cards: CardSet,
    free: Rows,
    policy: Policy | None,
    most_tries: int = MOST_TRIES,
) -> tuple[ContainerPlan, ...] | None:
    """Search as the agent does: for a plan that works whichever slots the kubelet reuses.

    If there is no such plan, one that may work is enough.
    """
    refusal: NoPlacement | None = None
    for guaranteed in (True, False):
        try:
            plan = make_plan(
                steps, cards, free, policy=policy, guaranteed=guaranteed, most_tries=most_tries
            )
        except NoPlacement as error:
            refusal = refusal or error
        else:
            if plan is not None:
                return plan
            refusal = None
        if not any(step.container.kind is ContainerKind.INIT for step in steps):
            break  # nothing is reusable
    if refusal is not None:
        raise refusal
    return None
