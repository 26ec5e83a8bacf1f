"""The report on one node: its cards with what is held and free of them, and by whom."""

from collections.abc import Sequence

from contract.demand import CORES_PER_CARD
from placement.cluster.holdings import Provenance
from placement.cluster.nodes import Problem
from view.model.occupancy import CORDONED, Occupancy
from view.model.reports import CardReport, Holder, LargestFit, NodeReport
from view.model.words import cards_in_words, clamp, lost_in_words

_LARGEST_SHARE = CORES_PER_CARD - 1
POOL_LABELS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)
"""By the first of these that a node has, it belongs to a pool."""


def report_node(occupancy: Occupancy, pool_labels: Sequence[str]) -> NodeReport:
    """Make the report."""
    node, facts = occupancy.view.node, occupancy.facts
    cards = _cards(occupancy)
    usable = [card for card in cards if not card.unhealthy and not node.problem]
    (cores, cores_held), (blocks, blocks_held) = occupancy.view.totals
    shares = [
        LargestFit(card.index, min(card.cores_free, _LARGEST_SHARE), card.blocks_free)
        for card in usable
        if card.cores_free and card.blocks_free
    ]
    return NodeReport(
        name=node.name,
        problem=node.problem.value,
        notes=tuple(_notes(occupancy, cards)),
        memory_block=facts.inventory.memory_block,
        cards=cards,
        links=facts.inventory.links,
        cores=cores,
        cores_held=cores_held,
        cores_free=cores - cores_held,
        blocks=blocks,
        blocks_held=blocks_held,
        blocks_free=blocks - blocks_held,
        largest_share=max(
            shares, key=lambda each: (each.cores, each.blocks, -each.card), default=None
        ),
        whole_cards=sum(card.cores_free == CORES_PER_CARD for card in usable),
        pods=len(occupancy.held),
        pool=next((facts.labels[each] for each in pool_labels if each in facts.labels), ""),
    )


def _cards(occupancy: Occupancy) -> tuple[CardReport, ...]:
    node, holders = occupancy.view.node, _holders(occupancy)
    free, reported = occupancy.view.free, occupancy.facts.inventory.free
    rows = zip(node.cards, node.sizes, free, occupancy.used(), reported, strict=True)
    return tuple(
        CardReport(
            uuid=card.uuid,
            index=card.index,
            model=card.model,
            memory=card.memory,
            numa=card.numa,
            unhealthy=clamp(card.withheld),
            cores=size.cores,
            cores_held=size.cores - free.cores,
            cores_free=free.cores,
            blocks=size.memory,
            blocks_held=size.memory - free.memory,
            blocks_free=free.memory,
            overbooked=not size.covers(used),
            reported_cores_free=reported.cores,
            reported_blocks_free=reported.memory,
            holders=tuple(holders.get(at, ())),
        )
        for at, (card, size, free, used, reported) in enumerate(rows)
    )


def _holders(occupancy: Occupancy) -> dict[int, list[Holder]]:
    found: dict[int, list[Holder]] = {}
    for held in occupancy.held.values():
        pod = held.pod
        for container, place, (cores, blocks) in held.parts:
            source = held.cards[container].source
            recorded = source is Provenance.RECORDED
            by = pod.annotated[container].evidence.value if recorded else ""
            found.setdefault(place, []).append(
                Holder(pod.id.namespace, pod.id.name, container, cores, blocks, source, by)
            )
    for place, (cores, blocks) in enumerate(occupancy.unseen):
        if cores or blocks:
            unseen = Holder("", "", "", cores, blocks, Provenance.UNSEEN)
            found.setdefault(place, []).append(unseen)
    return found


def _notes(occupancy: Occupancy, cards: tuple[CardReport, ...]) -> list[str]:
    facts, notes = occupancy.facts, []
    if facts.not_ready:
        notes.append(f"the node is not ready: {facts.not_ready}")
    if facts.cordoned:
        notes.append(f"{CORDONED}: no new pod is put on it")
    for held in occupancy.held.values():
        lost = sorted({uuid for each in held.cards.values() for uuid in each.lost})
        if lost:
            notes.append(f"pod {held.pod} is on {lost_in_words(lost)}")
    over = [card.index for card in cards if card.overbooked]
    if over:
        notes.append(f"{cards_in_words(over)}: pods hold, or will ask for, more than there is")
    less = [
        card.index
        for card in cards
        if card.reported_cores_free < card.cores_free
        or card.reported_blocks_free < card.blocks_free
    ]
    if less and occupancy.view.node.problem is Problem.NONE:
        notes.append(
            f"{cards_in_words(less)}: the agent counts less free than the pods in the API leave: "
            "one has just ended, or was deleted by force and still runs"
        )
    return notes
