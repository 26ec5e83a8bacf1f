"""The report on one pod: what it asks for, what it has got, how far it has come. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from contract.demand import ContainerDemand
from contract.resource import Resource
from contract.reusable import amounts_per_card
from placement.cluster.holdings import Provenance
from view.model.nodes import NodeFacts
from view.model.occupancy import PodHolding
from view.model.pods import PodFacts
from view.model.reports import ContainerReport, EventReport, Part, PodReport, Stage
from view.model.why import why_stopped
from view.model.words import lost_in_words


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods of one owner that ask for the same and are kept by the same."""

    pods: Annotated[tuple[PodReport, ...], "the oldest first."]

    @property
    def name(self) -> str:
        """How they are called: by their owner, or by the first of them."""
        first = self.pods[0]
        if len(self.pods) == 1:
            return f"{first.namespace}/{first.name}"
        if first.owner:
            kind, _, name = first.owner.partition("/")
            return f"{kind} {first.namespace}/{name}: {len(self.pods)} pods"
        return f"{first.namespace}/{first.name} and {len(self.pods) - 1} more"


def group_pods(pods: Sequence[PodReport]) -> list[PodGroup]:
    """Return pods by owner and cause, the group with the oldest first."""
    groups: dict[tuple[object, ...], list[PodReport]] = {}
    for pod in sorted(pods, key=lambda each: (each.created, each.namespace, each.name)):
        asks = tuple((each.cores, each.blocks) for each in pod.containers)
        why = pod.why.replace(pod.name, "")
        groups.setdefault((pod.namespace, pod.owner, asks, why), []).append(pod)
    return [PodGroup(tuple(each)) for each in groups.values()]


def report_pod(  # noqa: PLR0913 -- what it depends on, by keyword
    facts: PodFacts,
    *,
    node: NodeFacts | None,
    held: PodHolding | None,
    why: str,
    events: tuple[EventReport, ...],
    replaced: bool,
) -> PodReport:
    """Complete what the pod itself tells by what its node, placing and Events tell.

    Without *held* it is not known, or nothing any more. *why* is why a pod waits; of others that is
    found out here, by *events* too, of which the newest comes first. It is *replaced* where its
    owner has made another one since.
    """
    asked = zip(facts.placed.demand.containers, facts.report.containers, strict=True)
    containers = tuple(_container(demand, each, facts, node, held) for demand, each in asked)
    if facts.report.stage is not Stage.WAITING:
        on_lost = map(_on_lost_cards, containers)
        why = "; ".join(filter(None, (*on_lost, why_stopped(facts.report, events))))
    return replace(
        facts.report,
        containers=containers,
        replaced=replaced,
        why=why,
        events=events,
    )


def _on_lost_cards(container: ContainerReport) -> str:
    lost = [part.uuid for part in container.parts if part.lost]
    return f"container {container.name} is on {lost_in_words(lost)}" if lost else ""


def _container(
    container: ContainerDemand,
    report: ContainerReport,
    facts: PodFacts,
    node: NodeFacts | None,
    held: PodHolding | None,
) -> ContainerReport:
    parts, source = _parts(container, facts, node, held)
    recorded = source is Provenance.RECORDED
    evidence = facts.placed.annotated[container.name].evidence.value if recorded else ""
    return replace(report, parts=parts, source=source, evidence=evidence)


def _parts(
    container: ContainerDemand, facts: PodFacts, node: NodeFacts | None, held: PodHolding | None
) -> tuple[tuple[Part, ...], Provenance | None]:
    """Return the parts of cards that a container has or had, and how that is known."""
    name, placed = container.name, facts.placed
    known = () if node is None else zip(node.placed.cards, node.placed.sizes, strict=True)
    cards = [(card, size.memory) for card, size in known]
    recorded, chosen = placed.annotated.get(name), placed.chosen.get(name)
    rows: list[tuple[str, int | None, str, int]]  # as a part begins, and the size of the card
    lost: tuple[str, ...] = ()
    if held is not None:
        mine = held.cards.get(name)
        if mine is None:
            return (), None
        on, lost, source = [cards[at] for at in mine.positions], mine.lost, mine.source
        rows = [(card.uuid, card.index, card.model, size) for card, size in on]
        rows += [(uuid, None, "", 0) for uuid in lost]
    elif recorded is not None:
        by_uuid = {card.uuid: (card.index, card.model, size) for card, size in cards}
        rows = [(uuid, *by_uuid.get(uuid, (None, "", 0))) for uuid in recorded.cards]
        source = Provenance.RECORDED
    elif chosen is not None and placed.node and not facts.ended:
        sizes = {card.index: size for card, size in cards}
        rows = [("", index, "", sizes.get(index, 0)) for index in chosen]
        source = Provenance.CHOSEN
    else:
        return (), None
    asked, count = container.demand, len(rows)
    cores = amounts_per_card(asked, Resource.CORE, count)
    blocks: Sequence[int] = [size for *_, size in rows]  # of whole cards all memory
    if asked.is_share:
        blocks = amounts_per_card(asked, Resource.MEMORY, count)
    return tuple(
        Part(*row[:3], *amounts, lost=row[0] in lost)
        for row, amounts in zip(rows, zip(cores, blocks, strict=True), strict=True)
    ), source
