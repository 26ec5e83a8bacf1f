"""The cards of a pod on a node: the search of ``placement``, remembered. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

from contract.demand import ContainerDemand, ContainerKind
from contract.resource import RESOURCES, count_of
from placement.capacity import CardSet, need_of
from placement.cluster.nodes import Node
from placement.cluster.pods import MOST_REMEMBERED, Pod, Shape
from placement.errors import NoPlacement
from placement.scoring import Policy
from placement.search import Assignment, ContainerStep, Plan, Rows, make_plan

_MOST_TRIES = 500

Found: TypeAlias = tuple[Assignment, ...] | Literal[False] | None
"""Of each container what it gets; ``False`` where there is no plan, ``None`` if it was given up."""


def plan_pod(  # noqa: PLR0913 -- what a plan depends on, by keyword
    pod: Pod,
    node: Node,
    free: Rows,
    policy: Policy,
    *,
    fixed: Mapping[str, Sequence[int]] | None = None,
    most_tries: int = _MOST_TRIES,
) -> Plan | None:
    """Place all containers of a pod as the agent does.

    Args:
        pod: the pod.
        node: where.
        free: what is free there.
        policy: which card a share prefers, where the pod's author has no wish.
        fixed: the cards of containers that have theirs, by name and position.
        most_tries: how many placings are tried.

    Returns:
        The plan, by container name. ``None`` when the search was given up.

    Raises:
        NoPlacement: there is none.
    """
    if not node.cards:
        raise NoPlacement("no cards")
    containers, wishes, shape = pod.demand.containers, pod.wishes, pod.shape
    cards = node.card_set_for(wishes)
    policy = Policy(wishes.policy) if wishes.policy else policy
    found: Found = False
    if not fixed and not shape.problem:
        found = place(shape, cards, tuple(free), policy)
    # Not remembered: what is fixed, longer searches, and words that name the containers.
    if found is False or (found is None and most_tries > _MOST_TRIES):
        found = _search(_steps(containers, wishes.link, fixed), cards, free, policy, most_tries)
    if found is None:
        return None
    return {each.name: part for each, part in zip(containers, found, strict=True)}


def place(shape: Shape, cards: CardSet, free: Rows, policy: Policy) -> Found:
    """Place the containers of all pods of a shape on all nodes with such cards."""
    few = len(shape.needs) <= MOST_REMEMBERED
    return (_place if few else _place_many)(shape, cards, free, policy)


@lru_cache(maxsize=65536)
def _place(shape: Shape, cards: CardSet, free: Rows, policy: Policy) -> Found:
    try:
        return _search(_steps_of(shape), cards, free, policy, _MOST_TRIES)
    except NoPlacement:
        return False


_place_many = lru_cache(maxsize=1024)(_place.__wrapped__)


@lru_cache(maxsize=64)
def _steps_of(shape: Shape) -> Sequence[ContainerStep]:
    containers = tuple(
        ContainerDemand(str(number), need.kind, number, need.demand)
        for number, need in enumerate(shape.needs)
    )
    return _steps(containers, shape.wishes.link)


def _steps(
    containers: Sequence[ContainerDemand],
    link: str,
    fixed: Mapping[str, Sequence[int]] | None = None,
) -> Sequence[ContainerStep]:
    return [
        ContainerStep(
            each,
            need_of(each.demand),
            frozenset([one for one in RESOURCES if count_of(each.demand, one)]),
            fixed=tuple((fixed or {}).get(each.name, ())),
            link=link,
        )
        for each in containers
    ]


def _search(
    steps: Sequence[ContainerStep], cards: CardSet, free: Rows, policy: Policy, most_tries: int
) -> tuple[Assignment, ...] | None:
    """Search as the agent does: a plan that holds whichever slots the kubelet hands on.

    Where there is no such plan, one that may hold will do.
    """
    refusal: NoPlacement | None = None
    inits = any(step.container.kind is ContainerKind.INIT for step in steps)
    for guaranteed in (True, False) if inits else (True,):
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
    if refusal is not None:
        raise refusal
    return None
