"""The smallest change that would let a pod run, tried out with ``placement``. Pure.

A change is only told if ``placement`` says that the pod fits with it. Changes of the request come
first, by how much of it is given up; then those of nodes, cards and other pods.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, NamedTuple

from contract.demand import CORES_PER_CARD, ContainerDemand, Demand, PodDemand
from contract.inventory import NOTHING
from contract.names import Names
from contract.resource import Resource
from contract.reusable import find_leftover_conflicts
from contract.wishes import NO_WISHES
from placement.cluster.fit import Fit, check
from placement.cluster.nodes import Problem
from placement.pods import PodClass, PodInfo
from view.model.explanation import SuggestedChange
from view.model.occupancy import CORDONED, Occupancy, PodHolding
from view.model.words import cards_in_words, clamp, count_of

_LOSS_OF_A_WISH = 0.3
"""A wish that is dropped counts as much as this part of the request."""

_AWAY = "its agent is not connected to the kubelet"
_NEEDS = {CORDONED: "the right to change nodes", _AWAY: "access to the node and its agent"}
_WISHES = {
    "use-gpu-type": "use_types",
    "nouse-gpu-type": "nouse_types",
    "use-gpu-uuid": "use_uuids",
    "nouse-gpu-uuid": "nouse_uuids",
    "gpu-link": "link",
}


_Ranked = tuple[float, SuggestedChange]
"""A change and how much it costs."""


class Advice(NamedTuple):
    """What would let a pod run that fits nowhere, the smallest change first."""

    changes: Annotated[tuple[SuggestedChange, ...], "one of them would do."] = ()
    nothing: Annotated[
        str, "in a sentence, that none was found; empty where one was, or none is needed."
    ] = ""


NO_ADVICE = Advice()


def find_advice(pod: PodInfo, nodes: Sequence[Occupancy], names: Names) -> Advice:
    """Try changes out, one at a time, for a pod that fits on no node."""
    shape = pod.pod_class
    if not nodes or pod.errors or any(each.refusal(shape) is None for each in nodes):
        return NO_ADVICE
    if not shape.problem:
        search = _ChangeSearch(pod, nodes, names)
        ranked = sorted(
            (*search.reduce_requests(), *search.fewer_wishes()), key=lambda each: each[0]
        )
        author = [change for _, change in ranked]
        endings = find_endings(shape, search.open)
        changes = (*author, *search.opened(), *search.with_card_repaired(), *endings)
        if changes:
            return Advice(changes)
    found = "No single change that gpu-turnstile knows of would let it run"
    return Advice(nothing=f"{': '.join(filter(None, (found, _exceeds(pod, nodes))))}.")


def _exceeds(pod: PodInfo, nodes: Sequence[Occupancy]) -> str:
    """Return what a pod asks for that no node has at all, and the most there is; else empty."""
    demands = [each.demand for each in pod.demand.containers]
    cards = max(each.cards for each in demands)
    most = max(len(each.view.node.cards) for each in nodes)
    if cards > most:
        return f"no node has {count_of(cards, 'card')}; the largest has {most}"
    blocks = max(each.most_per_card(Resource.MEMORY) for each in demands)
    most = max((size.memory for each in nodes for size in each.view.node.sizes), default=0)
    if blocks > most:
        return f"no card has {count_of(blocks, 'memory block')}; the largest has {most}"
    return ""


def how_to_make(changes: Sequence[SuggestedChange]) -> str:
    """Return how an author makes the changes offered; empty where none is the author's."""
    if not any(each.by == "author" for each in changes):
        return ""
    return (
        "After a change of the manifest, delete the pod and create it again; "
        "of a Deployment, apply the changed manifest."
    )


class _ChangeSearch:
    def __init__(self, pod: PodInfo, nodes: Sequence[Occupancy], names: Names) -> None:
        self._pod = pod
        self._nodes = nodes
        self._names = names
        self.open = [
            each for each in nodes if not each.view.node.problem and not each.facts.cordoned
        ]

    def _where(self, pod: PodInfo) -> Iterator[str]:
        """Yield the nodes where a pod would fit."""
        shape = pod.pod_class
        return (each.view.node.name for each in self.open if each.refusal(shape) is None)

    def _fits(self, pod: PodInfo) -> bool:
        return not any(find_leftover_conflicts(pod.demand.containers)) and any(self._where(pod))

    # --- ask for less -----------------------------------------------------------------

    def reduce_requests(self) -> Iterator[_Ranked]:
        """Yield smaller requests, of one container at a time."""
        for container in self._pod.demand.containers:
            asked = container.demand
            for demand in self._smaller(container):
                kept = min(demand.cores / asked.cores, demand.memory / max(asked.memory, 1) or 1)
                text, fields = self._text(container, demand)
                nodes = tuple(self._where(_with(self._pod, container, demand)))
                yield 1 - kept, SuggestedChange("ask-less", text, "author", nodes, fields)

    def _smaller(self, container: ContainerDemand) -> list[Demand]:
        """Return requests of a container that fit: fewer cores, fewer blocks, or fewer of both."""
        asked, found = container.demand, list[Demand]()

        def fits(demand: Demand) -> bool:
            return self._fits(_with(self._pod, container, demand))

        if not asked.is_share:
            # No node has the millions of cards that a hostile pod may ask for.
            most = max([len(each.view.rows) for each in self.open], default=0)
            fewer = (
                replace(
                    asked,
                    cores=cards * CORES_PER_CARD,
                    memory=min(asked.memory, -(-asked.memory // asked.cards) * cards),
                )
                for cards in range(min(asked.cards - 1, most), 0, -1)
            )
            found += islice(filter(fits, fewer), 1)
        if asked.cards == 1 and asked.memory:  # a share needs memory
            most = min(asked.cores, CORES_PER_CARD) - 1
            cores = _largest(most, lambda cores: fits(replace(asked, cores=cores)))
            found += [replace(asked, cores=cores)] * bool(cores)
        blocks = _largest(asked.memory - 1, lambda blocks: fits(replace(asked, memory=blocks)))
        found += [replace(asked, memory=blocks)] * bool(blocks)
        if not found and asked.cards == 1:
            found += islice(filter(fits, self._of_one_card(asked)), 1)
        return found

    def _of_one_card(self, asked: Demand) -> Iterator[Demand]:
        """Yield what is free of each card, at most what is *asked*; the nearest to it first."""
        rows = {
            (min(cores, asked.cores, CORES_PER_CARD - 1), min(blocks, asked.memory or blocks))
            for each in self.open
            for cores, blocks in each.view.rows
            if cores and blocks
        }
        most = asked.memory or max((blocks for _, blocks in rows), default=1)
        ranked = sorted(
            rows, key=lambda row: (-min(row[0] / asked.cores, row[1] / most), -row[0], -row[1])
        )
        return (replace(asked, cores=cores, memory=blocks) for cores, blocks in ranked)

    def _text(self, container: ContainerDemand, demand: Demand) -> tuple[str, str]:
        """Return what to ask for instead, in words and as fields of the container."""
        asked, parts, fields = container.demand, [], []
        if demand.cores != asked.cores:
            parts.append(f"{count_of(demand.cores, 'core')} instead of {asked.cores}")
            fields.append(f'resources.limits["{self._names.core}"]: {demand.cores}')
        if demand.memory != asked.memory:
            instead = f"instead of {asked.memory}" if asked.memory else "instead of whole cards"
            parts.append(f"{count_of(demand.memory, 'memory block')} {instead}")
            fields.append(f'resources.limits["{self._names.memory}"]: {demand.memory}')
        several = len(self._pod.demand.containers) > 1
        where = f" in container {container.name}" if several else ""
        return f"ask for {' and '.join(parts)}{where}", ", ".join(fields)

    # --- wish for less ----------------------------------------------------------------

    def fewer_wishes(self) -> Iterator[_Ranked]:
        """Yield wishes that can be dropped: one of them, or else all."""
        wishes = self._pod.wishes
        made = [key for key, field in _WISHES.items() if getattr(wishes, field)]
        alone = [each for each in made if self._fits(self._without([each]))]
        for keys in [[each] for each in alone] or ([made] if len(made) > 1 else []):
            nodes = tuple(self._where(self._without(keys)))
            if nodes:
                noun = "annotation" if len(keys) == 1 else "annotations"
                named = [f"{self._names.domain}/{key}" for key in keys]
                text = f"drop the {noun} {' and '.join(named)}"
                yield (
                    _LOSS_OF_A_WISH * len(keys),
                    SuggestedChange("drop-wish", text, "author", nodes),
                )

    def _without(self, keys: Sequence[str]) -> PodInfo:
        gone = {_WISHES[key]: getattr(NO_WISHES, _WISHES[key]) for key in keys}
        return replace(self._pod, wishes=replace(self._pod.wishes, **gone))

    # --- what is not the pod's own ------------------------------------------------------

    def opened(self) -> Iterator[SuggestedChange]:
        """Yield nodes with room that take no pods, by what would have to end, the most first."""
        by_cause: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for each in self._nodes:
            away = each.view.node.problem is Problem.AGENT_DISCONNECTED
            closed = (*[CORDONED] * each.facts.cordoned, *[_AWAY] * away)
            view = each.view_as_if(connected=True)
            if closed and isinstance(check(self._pod.pod_class, view), Fit):
                by_cause[closed].append(each.view.node.name)
        for closed, nodes in sorted(by_cause.items(), key=lambda each: (-len(each[1]), each[0])):
            text = f"make a node usable that has cards for it: {' and '.join(closed)}"
            needs = " and ".join(_NEEDS[each] for each in closed)
            yield SuggestedChange("open-node", text, "admin", tuple(nodes), needs=needs)

    def with_card_repaired(self) -> tuple[SuggestedChange, ...]:
        """Return a card that would do if it were healthy."""
        found = [
            (each, place)
            for each in self.open
            for place, card in enumerate(each.view.node.cards)
            if card.withheld
            and each.refusal(self._pod.pod_class, each.view_as_if(healthy={place})) is None
        ]
        if not found:
            return ()
        each, place = found[0]
        name, card = each.view.node.name, each.view.node.cards[place]
        text = f"mend card {card.index} of {name}: {clamp(card.withheld)}"
        besides = f"{count_of(len(found) - 1, 'other card')} would do too" if found[1:] else ""
        needs = "access to the node"
        return (SuggestedChange("heal-card", text, "admin", (name,), needs=needs, besides=besides),)


def _with(pod: PodInfo, container: ContainerDemand, demand: Demand) -> PodInfo:
    containers = tuple(
        replace(each, demand=demand) if each is container else each
        for each in pod.demand.containers
    )
    return replace(pod, demand=PodDemand(containers))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to *most* that fits; 0 where none does.

    What fits with more fits with less.
    """
    return bisect_left(range(1, most + 1), x=True, key=lambda count: not fits(count))


_MOST_TOLD = 3
_MOST_PODS = 4


class _PodsToEnd(NamedTuple):
    """The smallest set of pods of a node that would have to end."""

    occupancy: Occupancy
    pods: tuple[PodHolding, ...]
    alone: int  # how many pods of the node would do each by itself

    def cost(self) -> tuple[int, int, str]:
        """Return what it costs; the name decides between equals."""
        return len(self.pods), sum(map(_size, self.pods)), self.occupancy.view.node.name


def find_endings(shape: PodClass, nodes: Sequence[Occupancy]) -> tuple[SuggestedChange, ...]:
    """Return pods that would have to end, the fewest and smallest first, one set a node."""
    found = sorted((way for each in nodes if (way := _way(shape, each))), key=_PodsToEnd.cost)
    ways = [way for way in found if len(way.pods) == len(found[0].pods)]
    told = ways[:_MOST_TOLD]
    if not told:
        return ()
    if len(told[0].pods) == 1:
        more = sum(way.alone for way in ways) - len(told)
        besides = f"ending one of {count_of(more, 'other pod')} would do too"
    else:
        more = len(ways) - len(told)
        besides = f"there are such pods on {count_of(more, 'other node')}"
    return tuple(
        SuggestedChange(
            "free-pods",
            "end " + " and ".join(_naming(held, way.occupancy) for held in way.pods),
            "admin",
            (way.occupancy.view.node.name,),
            needs="the right to delete pods in "
            + " and ".join(sorted({held.pod.id.namespace for held in way.pods})),
            besides=besides if more and way is told[-1] else "",
        )
        for way in told
    )


def _way(shape: PodClass, occupancy: Occupancy) -> _PodsToEnd | None:
    """Return the smallest set of pods of a node that have to end; ``None`` if none would do."""
    by_size = sorted(occupancy.held.values(), key=lambda each: (_size(each), str(each.pod)))
    if not by_size or not _fits_without(shape, occupancy, by_size):
        return None
    alone = [each for each in by_size if _fits_without(shape, occupancy, [each])]
    if alone:
        return _PodsToEnd(occupancy, (alone[0],), len(alone))
    chosen = by_size  # leave out the largest that are not needed
    for each in reversed(by_size):
        rest = [other for other in chosen if other is not each]
        if rest and _fits_without(shape, occupancy, rest):
            chosen = rest
    return _PodsToEnd(occupancy, tuple(chosen), 0) if len(chosen) <= _MOST_PODS else None


def _fits_without(shape: PodClass, occupancy: Occupancy, pods: Iterable[PodHolding]) -> bool:
    return (
        occupancy.refusal(shape, occupancy.view_without({each.pod.id.uid for each in pods})) is None
    )


def _size(held: PodHolding) -> int:
    return sum(each.cores for each in held.taken.values())


def _naming(held: PodHolding, occupancy: Occupancy) -> str:
    cards = occupancy.view.node.cards
    on = sorted({cards[place].index for place in held.taken})
    cores, blocks = map(sum, zip(NOTHING, *held.taken.values(), strict=True))
    where = f"{cards_in_words(on)} of {occupancy.view.node.name}"
    return (
        f"pod {held.pod} on {where} (frees {count_of(cores, 'core')}, {count_of(blocks, 'block')})"
    )
