"""Reports one node: its cards, what is held and free, and the holders."""

from collections.abc import Iterator, Sequence

from contract.demand import CORES_PER_CARD
from contract.inventory import is_instance_uuid
from contract.text import format_count
from placement.cluster.holdings import Provenance
from placement.cluster.nodes import Problem
from view.model.occupancy import CORDONED, Occupancy
from view.model.reports import CardReport, Holder, LargestFit, NodeReport
from view.model.words import ESTIMATES, UNRECORDED, clamp, name_cards, name_lost_cards, name_some

_LARGEST_SHARE = CORES_PER_CARD - 1
POOL_LABELS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
)
"""The first of these labels that a node has is its pool."""


def report_node(occupancy: Occupancy, pool_labels: Sequence[str]) -> NodeReport:
    """Build the report on a node."""
    node, facts = occupancy.snapshot.node, occupancy.facts
    cards = _cards(occupancy)
    refusals = occupancy.refusals
    unconfirmed = tuple(_unconfirmed(occupancy))
    in_service = not (facts.problem or refusals or unconfirmed)
    usable = [card for card in cards if not card.withheld and in_service]
    (cores, cores_held), (blocks, blocks_held) = occupancy.snapshot.totals
    shares = [
        LargestFit(card.index, min(card.cores_free, _LARGEST_SHARE), card.blocks_free)
        for card in usable
        if card.cores_free and card.blocks_free
    ]
    return NodeReport(
        name=node.name,
        problem=facts.problem,
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
        whole_cards=sum(
            card.cores_free == CORES_PER_CARD and not is_instance_uuid(card.uuid) for card in usable
        ),
        pods=len(occupancy.held),
        unconfirmed=unconfirmed,
        refusing="" if refusals is None else clamp(refusals.reason),
        refusing_unknown=refusals is not None and not refusals.last,
        pool=next((facts.labels[each] for each in pool_labels if each in facts.labels), ""),
    )


def _cards(occupancy: Occupancy) -> tuple[CardReport, ...]:
    node, holders = occupancy.snapshot.node, _holders(occupancy)
    free, reported = occupancy.snapshot.free, occupancy.facts.inventory.free
    rows = zip(node.cards, node.sizes, free, occupancy.used.held, reported, strict=True)
    return tuple(
        CardReport(
            uuid=card.uuid,
            index=card.index,
            model=card.model,
            memory=card.memory,
            numa=card.numa,
            unhealthy=clamp(card.unhealthy),
            cordoned=card.cordoned,
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
        for container, position, (cores, blocks) in held.parts:
            source = held.cards[container].source
            recorded = source is Provenance.RECORDED
            evidence = pod.annotated[container].evidence.value if recorded else ""
            found.setdefault(position, []).append(
                Holder(pod.id.namespace, pod.id.name, container, cores, blocks, source, evidence)
            )
    for position, (cores, blocks) in enumerate(occupancy.unseen):
        if cores or blocks:
            unseen = Holder("", "", "", cores, blocks, Provenance.UNSEEN)
            found.setdefault(position, []).append(unseen)
    return found


def _unconfirmed(occupancy: Occupancy) -> Iterator[str]:
    """Yield the running pods whose cards the agent has not recorded."""
    for held in occupancy.held.values():
        if held.pod.running and any(each.source in ESTIMATES for each in held.cards.values()):
            yield str(held.pod)


def _notes(occupancy: Occupancy, cards: tuple[CardReport, ...]) -> list[str]:
    facts, notes = occupancy.facts, []
    if facts.not_ready:
        notes.append(f"NotReady: {facts.not_ready}")
    if facts.cordoned:
        notes.append(f"{CORDONED}: it gets no new pods")
    if (found := occupancy.refusals) is not None:
        pods = format_count(found.count, "pod")
        notes.append(f"{pods} refused since it last admitted one, the last at {found.at}")
    if facts.cordon_problem:
        notes.append(facts.cordon_problem)
    for held in occupancy.held.values():
        lost = sorted({uuid for each in held.cards.values() for uuid in each.lost})
        if lost:
            notes.append(f"pod {held.pod} holds {name_lost_cards(lost)}")
    if unrecorded := [*_unconfirmed(occupancy)]:
        pods = f"{format_count(len(unrecorded), 'running pod')} ({name_some(unrecorded)})"
        notes.append(f"{pods} {UNRECORDED}")
    over = [card.index for card in cards if card.overbooked]
    if over:
        notes.append(f"{name_cards(over)}: overcommitted")
    less = [
        card.index
        for card in cards
        if card.reported_cores_free < card.cores_free
        or card.reported_blocks_free < card.blocks_free
    ]
    if less and occupancy.snapshot.node.problem is Problem.NONE:
        notes.append(
            f"{name_cards(less)}: the agent reports less free than the pods in the API leave: a "
            "pod has just ended, or was force-deleted and still runs"
        )
    return notes
