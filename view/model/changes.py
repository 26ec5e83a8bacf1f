"""The smallest change that would let a pod run, tried out with ``placement``. Pure.

A change is only told if ``placement`` says that the pod fits with it. Changes of the request come
first, by how much of it is given up; then those that need an admin.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from contract.demand import CORES_PER_CARD, ContainerDemand, Demand, PodDemand
from placement.cluster.fit import Fit, check
from placement.cluster.holdings import View
from placement.cluster.nodes import Problem
from placement.cluster.pods import Pod
from view.model.constraints import Constraints
from view.model.occupancy import Held, Occupancy
from view.model.reports import Change
from view.model.verdicts import Question, why_not_on

_LOSS_OF_A_WISH = 0.3
"""A wish that is dropped counts as much as this part of the request."""

_MOST_PODS_FREED = 4
_MOST_OF_A_KIND = 3

_WISHES = {
    "use-gpu-type": "use_types",
    "nouse-gpu-type": "nouse_types",
    "use-gpu-uuid": "use_uuids",
    "nouse-gpu-uuid": "nouse_uuids",
}


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A change and how much it costs."""

    change: Change
    cost: float


def find_changes(question: Question, nodes: Sequence[Occupancy]) -> tuple[Change, ...]:
    """Return what would let a pod run that fits nowhere, the smallest first.

    Args:
        question: the pod.
        nodes: all nodes with GPUs.
    """
    if question.pod.shape.problem:
        return ()
    search = _Search(question, nodes)
    author = sorted((*search.less(), *search.fewer_wishes()), key=lambda each: each.cost)
    admin = (*search.other_nodes(), *search.healed(), *search.freed())
    return tuple(each.change for each in (*author, *admin))


class _Search:
    def __init__(self, question: Question, nodes: Sequence[Occupancy]) -> None:
        self._question = question
        self._pod = question.pod
        self._nodes = nodes
        self._open = [
            each
            for each in nodes
            if not each.view.node.problem and not question.constraints.keep_from(each.facts.traits)
        ]

    def _where(self, pod: Pod) -> tuple[str, ...]:
        shape = pod.shape
        if shape.problem:
            return ()
        return tuple(
            each.view.node.name for each in self._open if isinstance(check(shape, each.view), Fit)
        )

    def _fits(self, pod: Pod) -> bool:
        shape = pod.shape
        return not shape.problem and any(
            isinstance(check(shape, each.view), Fit) for each in self._open
        )

    # --- ask for less -----------------------------------------------------------------

    def less(self) -> Iterator[_Ranked]:
        """Yield smaller requests, of one container at a time."""
        for container in self._pod.demand.containers:
            asked = container.demand
            found = [self._fewer_cores(container), self._fewer_blocks(container)]
            if not any(found):
                found.append(self._fewer_of_both(container))
            for demand in filter(None, found):
                pod = _with(self._pod, container, demand)
                kept = min(demand.cores / asked.cores, demand.memory / max(asked.memory, 1) or 1)
                change = Change(
                    "ask-less", self._text(container, demand), "author", self._where(pod)
                )
                yield _Ranked(change, 1 - kept)

    def _fewer_cores(self, container: ContainerDemand) -> Demand | None:
        asked = container.demand
        blocks = asked.memory
        whole = range(asked.cards - 1, 0, -1) if not asked.is_share else ()
        for cards in whole:
            per_card = -(-blocks // asked.cards)
            demand = Demand(cards * CORES_PER_CARD, min(blocks, per_card * cards))
            if self._fits(_with(self._pod, container, demand)):
                return demand
        if not asked.is_share and (asked.cards > 1 or not blocks):
            return None  # a share needs memory, and how much is not known
        most = min(asked.cores, CORES_PER_CARD) - 1
        cores = _largest(
            most, lambda cores: self._fits(_with(self._pod, container, Demand(cores, blocks)))
        )
        return Demand(cores, blocks) if cores else None

    def _fewer_blocks(self, container: ContainerDemand) -> Demand | None:
        asked = container.demand
        blocks = _largest(
            asked.memory - 1,
            lambda blocks: self._fits(_with(self._pod, container, Demand(asked.cores, blocks))),
        )
        return Demand(asked.cores, blocks) if blocks else None

    def _fewer_of_both(self, container: ContainerDemand) -> Demand | None:
        asked = container.demand
        if asked.cards > 1:
            return None
        rows = {
            (min(cores, asked.cores, CORES_PER_CARD - 1), min(blocks, asked.memory or blocks))
            for each in self._open
            for cores, blocks in each.view.rows
            if cores and blocks
        }
        most = asked.memory or max((blocks for _, blocks in rows), default=1)
        ranked = sorted(
            rows, key=lambda row: (-min(row[0] / asked.cores, row[1] / most), -row[0], -row[1])
        )
        for cores, blocks in ranked:
            if self._fits(_with(self._pod, container, Demand(cores, blocks))):
                return Demand(cores, blocks)
        return None

    def _text(self, container: ContainerDemand, demand: Demand) -> str:
        asked, parts = container.demand, []
        if demand.cores != asked.cores:
            parts.append(f"{demand.cores} cores instead of {asked.cores}")
        if demand.memory != asked.memory:
            instead = f"instead of {asked.memory}" if asked.memory else "instead of whole cards"
            parts.append(f"{demand.memory} memory blocks {instead}")
        several = len(self._pod.demand.containers) > 1
        where = f" in container {container.name}" if several else ""
        return f"ask for {' and '.join(parts)}{where}"

    # --- wish for less ----------------------------------------------------------------

    def fewer_wishes(self) -> Iterator[_Ranked]:
        """Yield wishes that can be dropped: one of them, or else all."""
        wishes = self._pod.wishes
        made = [key for key, field in _WISHES.items() if getattr(wishes, field)]
        alone = [each for each in made if self._fits(self._without([each]))]
        for keys in [[each] for each in alone] or ([made] if len(made) > 1 else []):
            nodes = self._where(self._without(keys))
            if nodes:
                noun = "annotation" if len(keys) == 1 else "annotations"
                text = f"drop the {noun} {' and '.join(keys)}"
                change = Change("drop-wish", text, "author", nodes)
                yield _Ranked(change, _LOSS_OF_A_WISH * len(keys))

    def _without(self, keys: Sequence[str]) -> Pod:
        gone: dict[str, tuple[str, ...]] = {_WISHES[key]: () for key in keys}
        return replace(self._pod, wishes=replace(self._pod.wishes, **gone))  # type: ignore[arg-type]  # fields that are lists

    # --- what an admin can do -----------------------------------------------------------

    def other_nodes(self) -> Iterator[_Ranked]:
        """Yield nodes with room that something else keeps the pod from."""
        by_reason: dict[str, list[str]] = {}
        anywhere = Question(self._pod, Constraints())
        for each in self._nodes:
            node, traits = each.view.node, replace(each.facts.traits, cordoned=False, taints=())
            kept = self._question.constraints.keep_from(each.facts.traits)
            away = node.problem is Problem.AWAY
            view = each.view_as_if(connected=True)
            clear = replace(each, facts=replace(each.facts, traits=traits))
            if (kept or away) and why_not_on(anywhere, clear, view) is None:
                reason = kept or "its agent is not connected to the kubelet"
                by_reason.setdefault(reason, []).append(node.name)
        ranked = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
        for reason, nodes in ranked[:_MOST_OF_A_KIND]:
            text = f"open a node that has cards for it: {reason}"
            yield _Ranked(Change("open-node", text, "admin", tuple(nodes)), 0)

    def healed(self) -> Iterator[_Ranked]:
        """Yield a card that would do if it were healthy."""
        for each in self._open:
            for place, card in enumerate(each.view.node.cards):
                view = each.view_as_if(healthy={place})
                if not card.healthy and isinstance(check(self._pod.shape, view), Fit):
                    told = each.facts.cards[place].unhealthy
                    text = f"mend card {card.index} of {each.view.node.name}: {told}"
                    yield _Ranked(Change("heal-card", text, "admin", (each.view.node.name,)), 0)
                    return

    def freed(self) -> Iterator[_Ranked]:
        """Yield pods that would have to end, the fewest and smallest first."""
        found = sorted(
            (way for each in self._open if (way := self._ways_to_free(each))),
            key=lambda way: (len(way[1]), way[2], way[0].view.node.name),
        )
        fewest = len(found[0][1]) if found else 0
        for each, pods, _ in found[:_MOST_OF_A_KIND]:
            if len(pods) == fewest:
                text = "end " + " and ".join(_naming(held, each) for held in pods)
                yield _Ranked(Change("free-pods", text, "admin", (each.view.node.name,)), 0)

    def _ways_to_free(self, occupancy: Occupancy) -> tuple[Occupancy, tuple[Held, ...], int] | None:
        """Return the smallest set of pods of a node that have to end; ``None`` if none would do."""
        if not occupancy.held or not self._fits_without(
            occupancy, {each.pod.uid for each in occupancy.held}
        ):
            return None
        by_size = sorted(occupancy.held, key=lambda each: (_size(each), str(each.pod)))
        for each in by_size:
            if self._fits_without(occupancy, {each.pod.uid}):
                return occupancy, (each,), _size(each)
        chosen = list(by_size)  # leave out the largest that are not needed
        for each in reversed(by_size):
            rest = [other for other in chosen if other is not each]
            if rest and self._fits_without(occupancy, {other.pod.uid for other in rest}):
                chosen = rest
        if len(chosen) > _MOST_PODS_FREED:
            return None
        return occupancy, tuple(chosen), sum(map(_size, chosen))

    def _fits_without(self, occupancy: Occupancy, uids: AbstractSet[str]) -> bool:
        view: View = occupancy.view_without(uids)
        return isinstance(check(self._pod.shape, view), Fit)


def _with(pod: Pod, container: ContainerDemand, demand: Demand) -> Pod:
    containers = tuple(
        replace(each, demand=demand) if each is container else each
        for each in pod.demand.containers
    )
    return replace(pod, demand=PodDemand(containers))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to *most* that fits; 0 where none does.

    What fits with more fits with less.
    """
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _size(held: Held) -> int:
    return sum(cores for _, cores, _ in held.taken)


def _naming(held: Held, occupancy: Occupancy) -> str:
    cards = occupancy.view.node.cards
    on = sorted({cards[place].index for place, *_ in held.taken})
    noun = "card" if len(on) == 1 else "cards"
    cores, blocks = (sum(row[slot] for row in held.taken) for slot in (1, 2))
    where = f"{noun} {', '.join(map(str, on))} of {occupancy.view.node.name}"
    return f"pod {held.pod} on {where} (frees {cores} cores, {blocks} blocks)"
