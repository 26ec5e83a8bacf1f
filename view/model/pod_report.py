"""Reports one pod: its requests, allocation, stage and reason. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from contract.demand import Demand
from contract.resource import Resource
from contract.reusable import amounts_per_card
from placement.cluster.holdings import Provenance
from view.model.claims import NOT_CLAIMED, STATIC, STILL_KNOWN, UNSERVED
from view.model.node_facts import NodeFacts
from view.model.occupancy import PodHolding
from view.model.pod_facts import WITHOUT_PLUGIN, PodFacts
from view.model.pod_reasons import why_stopped
from view.model.reports import ContainerReport, EventReport, Part, PodReport, Stage
from view.model.words import ESTIMATES, UNRECORDED, clamp, missing_node, name_lost_cards


def report_pod(
    facts: PodFacts,
    *,
    node: NodeFacts | None,
    held: PodHolding | None,
    why: str,
    events: tuple[EventReport, ...],
) -> PodReport:
    """Complete the report on a pod with what is known from its node, placement and Events.

    What it holds is ``None`` if it is unknown, or if it holds nothing any more. *why* is why it is
    pending; for other stages the reason is found here. The newest of its *events* comes first.
    """
    pairs = zip(facts.info.demand.containers, facts.report.containers, strict=True)
    containers = tuple(_with_cards(each, of.demand, facts, node, held) for of, each in pairs)
    report = replace(facts.report, containers=containers, events=events)
    if report.stage is not Stage.PENDING:
        cards = [_why_cards(each, facts, node) for each in containers]
        if node is not None and node.serves_claims and not (report.claim_template or facts.ended):
            is_static = facts.info.runtime_uid != facts.info.id.uid
            cards = [STATIC if is_static else NOT_CLAIMED]
        elif node is not None and report.claim and not (node.serves_claims or facts.ended):
            cards = [UNSERVED]
        stopped = why_stopped(report, events)
        if node is not None and node.serves_claims and report.stage is Stage.REFUSED:
            stopped += f". {STILL_KNOWN}" * any(each in report.message for each in WITHOUT_PLUGIN)
        why = "; ".join(filter(None, (*cards, stopped)))
    return replace(report, why=why)


def without_node(report: PodReport) -> PodReport:
    """Return the report on a pod that has not ended, and whose node does not exist."""
    containers = tuple(
        replace(each, parts=tuple(replace(part, lost=True) for part in each.parts))
        for each in report.containers
    )
    why = missing_node(report.node) + ": delete the pod" * (not report.deleting)
    return replace(report, containers=containers, stage=Stage.FAILING, why=why, node_missing=True)


def _why_cards(container: ContainerReport, facts: PodFacts, node: NodeFacts | None) -> str:
    """Return what is wrong with the cards of a container."""
    lost = [part.uuid for part in container.parts if part.lost]
    if lost:
        return f"container {container.name} holds {name_lost_cards(lost)}"
    if facts.report.stage is Stage.RUNNING and container.source in ESTIMATES:
        return f"container {container.name} is {UNRECORDED}"
    held = {part.uuid for part in container.parts if not facts.ended}
    cards = () if node is None else node.node.cards
    faults = [
        f"card {card.index}, which is unhealthy ({clamp(card.unhealthy)})"
        for card in cards
        if card.unhealthy and card.uuid in held
    ]
    return f"container {container.name} holds {' and '.join(faults)}" if faults else ""


def _with_cards(
    report: ContainerReport,
    request: Demand,
    facts: PodFacts,
    node: NodeFacts | None,
    held: PodHolding | None,
) -> ContainerReport:
    """Add what a container holds or held of each card, and how that is known."""
    name, pod = report.name, facts.info
    known = () if node is None else zip(node.node.cards, node.node.sizes, strict=True)
    cards = [(card, size.memory) for card, size in known]
    recorded, chosen = pod.annotated.get(name), pod.chosen.get(name)
    rows: list[tuple[str, int | None, str, int]]  # UUID, index, model and blocks of a card
    lost: tuple[str, ...] = ()
    if held is not None:
        mine = held.cards.get(name)
        if mine is None:
            return report
        on, lost, source = [cards[at] for at in mine.positions], mine.lost, mine.source
        rows = [(card.uuid, card.index, card.model, size) for card, size in on]
        rows += [(uuid, None, "", 0) for uuid in lost]
    elif recorded is not None:
        by_uuid = {card.uuid: (card.index, card.model, size) for card, size in cards}
        rows = [(uuid, *by_uuid.get(uuid, (None, "", 0))) for uuid in recorded.cards]
        source = Provenance.RECORDED
    elif chosen is not None and pod.node and not facts.ended:
        sizes = {card.index: size for card, size in cards}
        rows = [("", index, "", sizes.get(index, 0)) for index in chosen]
        source = Provenance.CHOSEN
    else:
        return report
    cores = amounts_per_card(request, Resource.CORE, len(rows))
    blocks: Sequence[int] = [size for *_, size in rows]  # a whole card counts with all its memory
    if request.is_share:
        blocks = amounts_per_card(request, Resource.MEMORY, len(rows))
    parts = tuple(
        Part(*row[:3], *amounts, lost=row[0] in lost)
        for row, amounts in zip(rows, zip(cores, blocks, strict=True), strict=True)
    )
    evidence = pod.annotated[name].evidence.value if source is Provenance.RECORDED else ""
    return replace(report, parts=parts, source=source, evidence=evidence)
