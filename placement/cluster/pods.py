"""A pod as the scheduler sees it: what it asks for, where it is, which cards it has. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

from contract.allocation import Allocation
from contract.demand import ContainerKind, Demand, PodDemand
from contract.names import Names
from contract.pod_annotations import read_allocations, read_choice, valid_allocations
from contract.requests import read_pod_demand
from contract.resource import RESOURCES, Counts
from contract.reusable import NO_ROOM, find_leftover_conflicts, most_at_once
from contract.wishes import NO_WISHES, Wishes, read_wishes
from placement.capacity import need_of
from placement.errors import NoPlacement

MOST_REMEMBERED = 32
"""Containers of a pod that is remembered for long: one with thousands takes megabytes."""

_ENDED = frozenset({"Succeeded", "Failed"})


class Need(NamedTuple):
    """What one container needs of its cards.

    Attributes:
        kind: how the kubelet counts it.
        demand: what it asks for.
        cards: how many cards.
        counts: what each of them must have free.
    """

    kind: ContainerKind
    demand: Demand
    cards: int
    counts: Counts

    @property
    def cores(self) -> int:
        """Cores that each card must have free."""
        return self.counts[0]

    @property
    def blocks(self) -> int:
        """Memory blocks that each card must have free."""
        return self.counts[1]


class Shape(NamedTuple):
    """All that a decision about nodes depends on; equal for equal pods.

    What follows from the first three is worked out once, not for every node.

    Attributes:
        needs: of each container, in the kubelet's order of admission.
        wishes: of the pod's author.
        problem: why no node can ever serve it; empty when one may.
        shares: what those take that share a card, the largest first.
        whole: those that take whole cards, the most memory first.
        most_cards: the container with the most cards.
        asked: what the whole pod has when it has most.
        has_inits: whether ordinary init containers hand places on (fact K7).
    """

    needs: tuple[Need, ...]
    wishes: Wishes
    problem: str = ""
    shares: tuple[Counts, ...] = ()
    whole: tuple[Need, ...] = ()
    most_cards: Need | None = None
    asked: Counts = (0,) * len(RESOURCES)
    has_inits: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that asks for GPUs.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        node: where it is bound; empty while it is not.
        demand: its GPU containers in the kubelet's order of admission.
        wishes: its author's.
        recorded: container name and card UUIDs, by the agent's record.
        chosen: container name and card indices, by a scheduler.
        order: the stamp of its binding; sorts pods as the kubelet admits them.
    """

    namespace: str
    name: str
    uid: str
    node: str
    demand: PodDemand
    wishes: Wishes = NO_WISHES
    recorded: tuple[tuple[str, tuple[str, ...]], ...] = ()
    chosen: tuple[tuple[str, tuple[int, ...]], ...] = ()
    order: str = ""

    def __str__(self) -> str:
        """Write as ``kubectl`` users do."""
        return f"{self.namespace}/{self.name}"

    @property
    def shape(self) -> Shape:
        """What decisions about nodes depend on."""
        few = len(self.demand.containers) <= MOST_REMEMBERED
        return (shape_of if few else _shape_of_many)(self.demand, self.wishes)


def has_ended(obj: Mapping[str, Any]) -> bool:
    """Return whether a pod has succeeded or failed: the kubelet runs nothing of it any more."""
    return (obj.get("status") or {}).get("phase") in _ENDED


def parse_pod(
    obj: Mapping[str, Any],
    names: Names,
    demand: PodDemand | None = None,
    written: Mapping[str, Allocation] | None = None,
) -> Pod | None:
    """Read a pod object; ``None`` for one that asks for no GPU.

    The object may be hostile where the API server does not check it: annotations and counts. What
    does not parse counts as not said; the agent logs it on the node.

    Args:
        obj: the object.
        names: the contract's names.
        demand: what its spec asks for, where that has been read already.
        written: the agent's record, where that has been read already.
    """
    spec = obj.get("spec") or {}
    if demand is None:
        demand, _ = read_pod_demand(spec, names)
    if not demand:
        return None
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    faults: list[str] = []
    if written is None:
        written = read_allocations(annotations, names, faults)
    recorded = valid_allocations(written, demand, names, faults)
    chosen = read_choice(annotations, demand, written, names, faults)
    wishes, _ = read_wishes(annotations, names)
    if wishes.core_limit is not None:
        wishes = replace(wishes, core_limit=None)  # says nothing of where
    return Pod(
        intern(metadata.get("namespace", "")),
        metadata.get("name", ""),
        metadata.get("uid", ""),
        intern(spec.get("nodeName") or ""),
        _shared(demand) if len(demand.containers) <= MOST_REMEMBERED else demand,
        wishes,
        tuple((name, tuple(map(intern, each.cards))) for name, each in recorded.items()),
        tuple(chosen.items()),
        annotations.get(names.bind_order, ""),
    )


@lru_cache(maxsize=4096)
def _shared(demand: PodDemand) -> PodDemand:
    """Return one object for equal demands: there are many pods and few kinds of them."""
    return demand


@lru_cache(maxsize=4096)
def shape_of(demand: PodDemand, wishes: Wishes) -> Shape:
    """Return the shape of a pod."""
    needs = []
    for container in demand.containers:
        try:
            need = need_of(container.demand)
        except NoPlacement as error:
            return Shape((), wishes, str(error))
        counts = tuple(need.per_card[each] for each in RESOURCES)
        needs.append(Need(container.kind, container.demand, container.demand.cards, counts))
    for container, conflict in find_leftover_conflicts(demand.containers):
        if conflict.rule == NO_ROOM:  # by luck the kubelet might hand on what is not split
            return Shape((), wishes, f"container {container.name}: {conflict.detail}")
    shares = [need.counts for need in needs if need.demand.is_share]
    whole = [need for need in needs if not need.demand.is_share]
    return Shape(
        tuple(needs),
        wishes,
        "",
        tuple(sorted(shares, reverse=True)),
        tuple(sorted(whole, key=lambda need: -need.blocks)),
        max(needs, key=lambda need: need.cards),
        tuple(most_at_once(demand, each) for each in RESOURCES),
        any(need.kind is ContainerKind.INIT for need in needs),
    )


_shape_of_many = lru_cache(maxsize=4)(shape_of.__wrapped__)
