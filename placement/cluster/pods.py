"""A pod as the scheduler sees it: what it asks for, where it is, which cards it has. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

from contract.allocation import Allocation
from contract.demand import (
    NO_ROOM,
    ContainerKind,
    Demand,
    PodDemand,
    find_misfits,
    read_pod_demand,
)
from contract.inventory import NOTHING, Amounts
from contract.names import Names
from contract.pod_annotations import read_allocations, read_choice, valid_allocations
from contract.resource import RESOURCES, count_of
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
    counts: Amounts


class Shape(NamedTuple):
    """All that a decision about nodes depends on; equal for equal pods.

    What follows from the first three is worked out once, not for every node.

    Attributes:
        needs: of each container, in the kubelet's order of admission.
        wishes: of the pod's author.
        problem: why no node can ever serve it; empty when one may.
        shares: how many containers share a card.
        most_cards: the container with the most cards.
        asked: what the whole pod has when it has most.
    """

    needs: tuple[Need, ...]
    wishes: Wishes
    problem: str = ""
    shares: int = 0
    most_cards: Need | None = None
    asked: Amounts = NOTHING

    def __hash__(self) -> int:
        """Return the same for equal shapes, at once: it is asked of every node."""
        return hash(self.asked)


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
        needs.append(Need(container.kind, container.demand, container.demand.cards, need.per_card))
    for container, misfit in find_misfits(demand):
        if misfit.rule == NO_ROOM:  # by luck the kubelet might hand on what is not split
            return Shape((), wishes, f"container {container.name}: {misfit.detail}")
    return Shape(
        tuple(needs),
        wishes,
        "",
        sum(need.demand.is_share for need in needs),
        max(needs, key=lambda need: need.cards),
        _most_at_once(needs),
    )


def _most_at_once(needs: Sequence[Need]) -> Amounts:
    """Return what a pod has when it has most.

    An ordinary init container runs beside the sidecars before it, and hands on what it had.
    """
    found = []
    for resource in RESOURCES:
        kept = most = 0
        for need in needs:
            count = count_of(need.demand, resource)
            most = max(most, kept + count)
            if need.kind is not ContainerKind.INIT:
                kept += count
        found.append(most)
    return Amounts(*found)


_shape_of_many = lru_cache(maxsize=4)(shape_of.__wrapped__)
