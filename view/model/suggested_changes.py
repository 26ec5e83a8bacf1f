"""Finds small changes after which a pending pod would fit. Pure.

A change is only suggested if ``placement`` finds that the pod fits after it. Changes of the request
come first, those that give up least before others; then those of nodes, cards and other pods.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, NamedTuple

from contract.demand import CORES_PER_CARD, ContainerDemand, Demand, PodDemand
from contract.inventory import NOTHING
from contract.names import Names
from contract.requests import MOST_CARDS
from contract.resource import Resource
from contract.reusable import find_leftover_conflict
from contract.text import format_count
from contract.wishes import NO_WISHES
from placement.capacity import may_get_instances
from placement.cluster.fit import Fit, check
from placement.cluster.nodes import Problem
from placement.cluster.selectors import ANY_NODE, NodeSelection
from placement.pods import PodClass, PodInfo
from view.model.node_facts import NO_COUNTS
from view.model.node_fits import excluded_by
from view.model.occupancy import CORDONED, NOT_READY, Occupancy, PodHolding
from view.model.reports import MAY_REFUSE, REFUSES
from view.model.words import clamp, name_cards, name_some, summarize

_MIB = 2**20
_COST_OF_A_WISH = 0.3
"""Removing a wish, or another number of cards, costs as much as this part of the request."""

_DISCONNECTED = "its agent is not connected to the kubelet"
_AGENT_NOT_READY = "its agent is not ready"
_NEEDS = {
    CORDONED: "permission to change nodes",
    **dict.fromkeys(
        (NOT_READY, REFUSES, MAY_REFUSE, _DISCONNECTED, _AGENT_NOT_READY, NO_COUNTS),
        "access to the node and its agent",
    ),
}
_WISHES = {
    "use-gpu-type": "use_types",
    "nouse-gpu-type": "nouse_types",
    "use-gpu-uuid": "use_uuids",
    "nouse-gpu-uuid": "nouse_uuids",
    "gpu-link": "link",
}


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """One change after which a pod would fit."""

    kind: Annotated[
        str,
        "``reduce-request``, ``remove-wish``, ``delete-pods``, ``wait-for-pods``, "
        "``repair-card``, ``uncordon-card`` or ``enable-node``.",
    ]
    text: Annotated[str, "what to do, in one line."]
    by: Annotated[str, "``author`` if the manifest of the pod is changed, else ``admin``."]
    nodes: Annotated[tuple[str, ...], "on which the pod would then fit."]
    manifest: Annotated[str, "fields of the manifest with their new values; empty if none."] = ""
    needs: Annotated[str, "required permissions or access; empty if the manifest is changed."] = ""
    besides: Annotated[str, "how many more changes of this kind exist."] = ""


_Ranked = tuple[float, SuggestedChange]
"""The cost of a change, and the change."""


class Suggestions(NamedTuple):
    """Changes after which a pod would fit that fits on no node now."""

    changes: Annotated[
        tuple[SuggestedChange, ...], "each of them is enough; the smallest first."
    ] = ()
    nothing: Annotated[str, "a sentence if no change was found; else empty."] = ""


NO_SUGGESTIONS = Suggestions()


def suggest_changes(
    pod: PodInfo,
    nodes: Sequence[Occupancy],
    names: Names,
    selection: NodeSelection = ANY_NODE,
    *,
    now: datetime,
) -> Suggestions:
    """Find single changes for a pod that fits on no node that its *selection* allows.

    If the end of pods that are being deleted is enough, nobody else is to be deleted.
    """
    shape, excluded = pod.pod_class, [excluded_by(selection, each) for each in nodes]
    if nodes and all(excluded) and not pod.errors and all(each.refusal(shape) for each in nodes):
        text = "No change would make it fit: its own spec excludes all nodes with cards"
        return Suggestions(nothing=f"{text}, by {summarize(excluded)}.")
    nodes = [each for each, why in zip(nodes, excluded, strict=True) if not why]
    if not nodes or pod.errors or any(each.refusal(shape) is None for each in nodes):
        return NO_SUGGESTIONS
    if not shape.problem:
        search = _ChangeSearch(pod, nodes, names)
        ranked = sorted(
            (*search.reduce_requests(), *search.remove_wishes()), key=lambda each: each[0]
        )
        author = [change for _, change in ranked]
        waits, late = find_leaving(shape, search.usable, now)
        deletions = () if waits else find_deletions(shape, search.usable)
        admin = (*search.enable_nodes(), *search.repair_card(), *late, *deletions)
        changes = (*waits, *author, *admin)
        if selection.gates:
            wait = "wait until its scheduling gates are removed"
            changes = tuple(replace(each, text=f"{each.text}, and {wait}") for each in changes)
        if changes:
            return Suggestions(changes)
    text = "No single change that gpu-turnstile can suggest would make it fit"
    return Suggestions(nothing=f"{': '.join(filter(None, (text, _exceeds(pod, nodes))))}.")


def _exceeds(pod: PodInfo, nodes: Sequence[Occupancy]) -> str:
    """Return what a pod requests that no node has at all, and the most there is; else empty."""
    demands = [each.demand for each in pod.demand.containers]
    demand = max(demands, key=lambda each: (each.cards, not may_get_instances(each)))
    sets = [each.snapshot.node.card_set_for(pod.wishes) for each in nodes]
    cards = demand.cards
    most = max(
        len(each.names) - len(each.for_shares) * (not may_get_instances(demand)) for each in sets
    )
    if cards > most:
        return f"no node has {format_count(cards, 'card')}; the largest has {most}"
    blocks = max(each.most_per_card(Resource.MEMORY) for each in demands)
    most = max((size.memory for each in nodes for size in each.snapshot.node.sizes), default=0)
    if blocks > most:
        return f"no card has {format_count(blocks, 'memory block')}; the largest has {most}"
    return ""


def how_to_make(changes: Sequence[SuggestedChange], *, translated: bool = False) -> str:
    """Explain how to apply changes of a manifest; empty if none of the changes is one.

    A manifest that was *translated* has another system's names.
    """
    if not any(each.by == "author" for each in changes):
        return ""
    text = (
        "To apply a change of the manifest, delete the pod and create it again; "
        "for a Deployment, apply the changed manifest."
    )
    others = (
        " Its author wrote another system's names: write the change in these, or all in ours, as "
        "a pod with both is denied."
    )
    return text + others if translated else text


class _ChangeSearch:
    def __init__(self, pod: PodInfo, nodes: Sequence[Occupancy], names: Names) -> None:
        self._pod = pod
        self._nodes = nodes
        self._names = names
        self.usable = [
            each
            for each in nodes
            if not (each.facts.problem or each.facts.cordoned or each.facts.not_ready)
        ]

    def _nodes_for(self, pod: PodInfo) -> Iterator[str]:
        """Yield the usable nodes on which a pod fits."""
        shape = pod.pod_class
        return (each.snapshot.node.name for each in self.usable if each.refusal(shape) is None)

    def _fits(self, pod: PodInfo) -> bool:
        return not find_leftover_conflict(pod.demand.containers) and any(self._nodes_for(pod))

    # --- smaller requests ---------------------------------------------------------------

    def reduce_requests(self) -> Iterator[_Ranked]:
        """Yield smaller requests, for one container at a time."""
        for container in self._pod.demand.containers:
            asked = container.demand
            for demand in self._smaller(container):
                kept = min(demand.cores / asked.cores, demand.memory / max(asked.memory, 1) or 1)
                cost = 1 - kept or _COST_OF_A_WISH
                text, fields = self._text(container, demand)
                nodes = tuple(self._nodes_for(_with(self._pod, container, demand)))
                yield cost, SuggestedChange("reduce-request", text, "author", nodes, fields)

    def _smaller(self, container: ContainerDemand) -> list[Demand]:
        """Return smaller requests that fit: fewer cores, fewer blocks, or fewer of both.

        For a share of several cards also: the same of fewer cards, or as much of another number.
        """
        asked, found = container.demand, list[Demand]()
        split, is_of_one = asked.split, asked.cards == asked.split

        def fits(demand: Demand) -> bool:
            return self._fits(_with(self._pod, container, demand))

        # Bounded by the cards of a node: a hostile pod may request millions.
        most = max([len(each.snapshot.rows) for each in self.usable], default=0)
        if not asked.is_share:
            fewer = (
                replace(
                    asked,
                    cores=cards * CORES_PER_CARD,
                    memory=min(asked.memory, -(-asked.memory // asked.cards) * cards),
                )
                for cards in range(min(asked.cards - 1, most), 0, -1)
            )
            found += islice(filter(fits, fewer), 1)
        if split > 1:
            found += islice(filter(fits, _of_fewer_cards(asked, most)), 1)
            found += islice(filter(fits, _of_other_cards(asked, most)), 1)
        if is_of_one and asked.memory:  # a share needs memory
            fewer_cores = asked.cores_per_card - 1
            cores = split * _largest(
                fewer_cores, lambda cores: fits(replace(asked, cores=cores * split))
            )
            found += [replace(asked, cores=cores)] * bool(cores)
        blocks = self._if_mib(asked)
        if not blocks or not fits(replace(asked, memory=blocks)):
            blocks = split * _largest(
                asked.memory // split - 1,
                lambda blocks: fits(replace(asked, memory=blocks * split)),
            )
        found += [replace(asked, memory=blocks)] * bool(blocks)
        if not found and is_of_one:
            found += islice(filter(fits, self._of_what_is_free(asked)), 1)
        return found

    def _if_mib(self, asked: Demand) -> int:
        """Return the blocks of as many MiB as blocks are requested.

        0 if a card has so many blocks, or if as many MiB are less than a block.
        """
        sizes = [size.memory for each in self.usable for size in each.snapshot.node.sizes]
        if not sizes or asked.most_per_card(Resource.MEMORY) <= max(sizes):
            return 0
        known = [each.facts.inventory.memory_block for each in self.usable]
        block = min(filter(None, known))
        each = asked.memory // asked.split * _MIB  # of one card, for a share
        return -(-each // block) * asked.split if each >= block else 0

    def _of_what_is_free(self, asked: Demand) -> Iterator[Demand]:
        """Yield the free amounts of each card, at most those *asked*; the nearest to them first.

        A share of several cards gets so much of each of them.
        """
        split = asked.split
        asked_cores, asked_blocks = asked.cores // split, asked.memory // split
        rows = {
            (min(cores, asked_cores, CORES_PER_CARD - 1), min(blocks, asked_blocks or blocks))
            for each in self.usable
            for cores, blocks in each.snapshot.rows
            if cores and blocks
        }
        most = asked_blocks or max((blocks for _, blocks in rows), default=1)
        ranked = sorted(
            rows, key=lambda row: (-min(row[0] / asked_cores, row[1] / most), -row[0], -row[1])
        )
        return (
            replace(asked, cores=cores * split, memory=blocks * split) for cores, blocks in ranked
        )

    def _text(self, container: ContainerDemand, demand: Demand) -> tuple[str, str]:
        """Return the smaller request in words, and as fields of the container."""
        asked, parts, fields = container.demand, [], []
        if demand.cores != asked.cores:
            parts.append(f"{format_count(demand.cores, 'core')} instead of {asked.cores}")
            fields.append(f'resources.limits["{self._names.core}"]: {demand.cores}')
        if demand.memory != asked.memory:
            instead = f"instead of {asked.memory}" if asked.memory else "instead of whole cards"
            if demand.memory == self._if_mib(asked):
                instead = f"({asked.memory} MiB) {instead}"
            parts.append(f"{format_count(demand.memory, 'memory block')} {instead}")
            fields.append(f'resources.limits["{self._names.memory}"]: {demand.memory}')
        if demand.split != asked.split:
            parts.append(f"{format_count(demand.split, 'card')} instead of {asked.split}")
            annotation = self._names.gpu_cards_of(container.name)
            fields.append(f'metadata.annotations["{annotation}"]: "{demand.split}"')
        several = len(self._pod.demand.containers) > 1
        where = f" in container {container.name}" if several else ""
        instead = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        return f"request {instead}{where}", ", ".join(fields)

    # --- fewer wishes -------------------------------------------------------------------

    def remove_wishes(self) -> Iterator[_Ranked]:
        """Yield wishes to remove: single ones, or all if no single one is enough."""
        wishes = self._pod.wishes
        made = [key for key, field in _WISHES.items() if getattr(wishes, field)]
        alone = [each for each in made if self._fits(self._without([each]))]
        for keys in [[each] for each in alone] or ([made] if len(made) > 1 else []):
            nodes = tuple(self._nodes_for(self._without(keys)))
            if nodes:
                noun = "annotation" if len(keys) == 1 else "annotations"
                named = [f"{self._names.domain}/{key}" for key in keys]
                text = f"remove the {noun} {' and '.join(named)}"
                yield (
                    _COST_OF_A_WISH * len(keys),
                    SuggestedChange("remove-wish", text, "author", nodes),
                )

    def _without(self, keys: Sequence[str]) -> PodInfo:
        gone = {_WISHES[key]: getattr(NO_WISHES, _WISHES[key]) for key in keys}
        return replace(self._pod, wishes=replace(self._pod.wishes, **gone))

    # --- changes by an admin ------------------------------------------------------------

    def enable_nodes(self) -> Iterator[SuggestedChange]:
        """Yield unusable nodes with free cards, grouped by cause, the largest group first."""
        by_cause: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for each in self._nodes:
            disconnected = each.snapshot.node.problem is Problem.AGENT_DISCONNECTED
            cause = NO_COUNTS if each.facts.serves_claims else _DISCONNECTED
            causes = (
                *[CORDONED] * each.facts.cordoned,
                *[NOT_READY] * bool(each.facts.not_ready),
                *(
                    [REFUSES if each.refusals.last else MAY_REFUSE]
                    if each.refusals is not None
                    else ()
                ),
                *[_AGENT_NOT_READY] * each.facts.agent_not_ready,
                *[cause] * disconnected,
            )
            then = each.connected() if disconnected else each
            if causes and isinstance(check(self._pod.pod_class, then.snapshot), Fit):
                by_cause[causes].append(each.snapshot.node.name)
        for causes, nodes in sorted(by_cause.items(), key=lambda each: (-len(each[1]), each[0])):
            text = f"make {name_some(nodes)} usable: {' and '.join(causes)}"
            needs = " and ".join(dict.fromkeys(_NEEDS[each] for each in causes))
            yield SuggestedChange("enable-node", text, "admin", tuple(nodes), needs=needs)

    def repair_card(self) -> tuple[SuggestedChange, ...]:
        """Return a withheld card on which the pod would fit if it were not."""
        found = [
            (each, position)
            for each in self.usable
            for position, card in enumerate(each.snapshot.node.cards)
            if card.withheld and each.with_usable(position).refusal(self._pod.pod_class) is None
        ]
        if not found:
            return ()
        each, position = found[0]
        name, card = each.snapshot.node.name, each.snapshot.node.cards[position]
        kind, needs = "repair-card", "access to the node"
        text = f"repair card {card.index} of {name}: {clamp(card.unhealthy)}"
        if not card.unhealthy:
            kind, needs = "uncordon-card", "permission to change nodes"
            text = f"uncordon card {card.index} of {name}"
        besides = f"or one of {format_count(len(found) - 1, 'other card')}" if found[1:] else ""
        return (SuggestedChange(kind, text, "admin", (name,), needs=needs, besides=besides),)


def _of_fewer_cards(asked: Demand, most: int) -> Iterator[Demand]:
    """Yield shares of fewer cards, with as much of each card; the most cards first."""
    cores, blocks = asked.cores_per_card, asked.memory // asked.split
    for cards in range(min(asked.split - 1, most), 0, -1):
        yield Demand(cores * cards, blocks * cards, cards)


def _of_other_cards(asked: Demand, most: int) -> Iterator[Demand]:
    """Yield as much in all, divided over another number of cards; the nearest number first."""
    for cards in sorted(range(1, min(MOST_CARDS, most) + 1), key=lambda at: abs(at - asked.split)):
        uneven = asked.cores % cards or asked.memory % cards
        if not uneven and asked.cores < cards * CORES_PER_CARD and cards != asked.split:
            yield replace(asked, split=cards)


def _with(pod: PodInfo, container: ContainerDemand, demand: Demand) -> PodInfo:
    containers = tuple(
        replace(each, demand=demand) if each is container else each
        for each in pod.demand.containers
    )
    return replace(pod, demand=PodDemand(containers))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to *most* that fits; 0 if none fits.

    If a number fits, every smaller one fits too.
    """
    return bisect_left(range(1, most + 1), x=True, key=lambda count: not fits(count))


_OVERDUE = timedelta(seconds=30)
_MOST_NODES = 3
_MOST_PODS = 4


class _PodsToDelete(NamedTuple):
    """The smallest set of pods of one node whose deletion would be enough."""

    occupancy: Occupancy
    pods: tuple[PodHolding, ...]
    alone: int  # on this node, how many pods would each be enough alone


def _cost(found: _PodsToDelete) -> tuple[int, int, str]:
    """Return the number of pods, then their cores; the node name breaks ties."""
    return len(found.pods), sum(map(_size, found.pods)), found.occupancy.snapshot.node.name


def find_leaving(
    shape: PodClass, nodes: Sequence[Occupancy], now: datetime
) -> tuple[tuple[SuggestedChange, ...], tuple[SuggestedChange, ...]]:
    """Return what to wait for, and what is late: pods whose end is enough, and that are deleted.

    One of them is late if it should have ended half a minute ago: its node may be unavailable.
    """
    found = [
        each
        for node in nodes
        if node.leaving and (each := _pods_to_delete(shape, node, {*node.leaving}))
    ]
    waits, late = [], []
    for each in sorted(found, key=_cost):
        ends = [each.occupancy.leaving[held.pod.id.uid] for held in each.pods]
        pods = " and ".join(f"pod {held.pod}" for held in each.pods)
        node, are = each.occupancy.snapshot.node.name, "is" if len(each.pods) == 1 else "are"
        if all(now - datetime.fromisoformat(end) < _OVERDUE for end in ends if end):
            text = f"wait for the end of {pods} on {node}, which {are} being deleted"
            waits.append(SuggestedChange("wait-for-pods", text, "admin", (node,)))
        else:
            text = f"find out why {pods} on {node} {are} not deleted yet: to end at {max(ends)}"
            needs = "access to the node"
            late.append(SuggestedChange("wait-for-pods", text, "admin", (node,), needs=needs))
    return tuple(waits[:1]), tuple(late[:1])


def find_deletions(shape: PodClass, nodes: Sequence[Occupancy]) -> tuple[SuggestedChange, ...]:
    """Return pods to delete, the fewest and smallest first, one set per node."""
    # Pods that are deleted already leave anyway.
    rest = [node.without(node.leaving.keys()) for node in nodes]
    found = sorted((each for node in rest if (each := _pods_to_delete(shape, node))), key=_cost)
    smallest = [each for each in found if len(each.pods) == len(found[0].pods)]
    shown = smallest[:_MOST_NODES]
    if not shown:
        return ()
    if len(shown[0].pods) == 1:
        more = sum(each.alone for each in smallest) - len(shown)
        besides = f"or one of {format_count(more, 'other pod')}"
    else:
        more = len(smallest) - len(shown)
        besides = f"or pods on {format_count(more, 'other node')}"
    return tuple(
        SuggestedChange(
            "delete-pods",
            "delete " + " and ".join(_describe(held, each.occupancy) for held in each.pods),
            "admin",
            (each.occupancy.snapshot.node.name,),
            needs="permission to delete pods in "
            + " and ".join(sorted({held.pod.id.namespace for held in each.pods})),
            besides=besides if more and each is shown[-1] else "",
        )
        for each in shown
    )


def _pods_to_delete(
    shape: PodClass, occupancy: Occupancy, among: AbstractSet[str] | None = None
) -> _PodsToDelete | None:
    """Return the smallest set of pods to delete on a node; ``None`` if no small set is enough.

    They are *among* these UIDs, if any are given.
    """
    pods = (each for uid, each in occupancy.held.items() if among is None or uid in among)
    by_size = sorted(pods, key=lambda each: (_size(each), str(each.pod)))
    if not by_size or not _fits_without(shape, occupancy, by_size):
        return None
    alone = [each for each in by_size if _fits_without(shape, occupancy, [each])]
    if alone:
        return _PodsToDelete(occupancy, (alone[0],), len(alone))
    chosen = by_size  # then keep the largest that need not be deleted
    for each in reversed(by_size):
        rest = [other for other in chosen if other is not each]
        if rest and _fits_without(shape, occupancy, rest):
            chosen = rest
    return _PodsToDelete(occupancy, tuple(chosen), 0) if len(chosen) <= _MOST_PODS else None


def _fits_without(shape: PodClass, occupancy: Occupancy, pods: Iterable[PodHolding]) -> bool:
    return occupancy.without({each.pod.id.uid for each in pods}).refusal(shape) is None


def _size(held: PodHolding) -> int:
    return sum(each.cores for each in held.taken.values())


def _describe(held: PodHolding, occupancy: Occupancy) -> str:
    cards = occupancy.snapshot.node.cards
    on = sorted({cards[position].index for position in held.taken})
    cores, blocks = map(sum, zip(NOTHING, *held.taken.values(), strict=True))
    where, does = f"{name_cards(on)} of {occupancy.snapshot.node.name}", "frees"
    if not on:  # its cards are missing, but it counts on its node
        where, does = f"a missing card of {occupancy.snapshot.node.name}", "counts as"
        cores, blocks = held.pod.pod_class.peak
    freed = f"{format_count(cores, 'core')}, {format_count(blocks, 'block')}"
    return f"pod {held.pod} on {where} ({does} {freed})"
