"""The report on one pod: what it asks for, what it has got, how far it has come and why. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from signal import Signals

from contract.demand import ContainerDemand
from contract.resource import Resource
from contract.reusable import amounts_per_card
from placement.cluster.holdings import Provenance
from view.model.events import newest_first
from view.model.nodes import NodeFacts
from view.model.occupancy import PodHolding
from view.model.pods import PodFacts, failing, refusal_text
from view.model.reports import (
    ContainerReport,
    ContainerStatus,
    Ending,
    EventReport,
    Part,
    PodReport,
    Stage,
)
from view.model.words import count_of, lost_in_words

_VETOED = "GPUStartVetoed"

_BY = {
    Provenance.RECORDED: "by the agent's record",
    Provenance.CHOSEN: "chosen by a scheduler, not confirmed by the agent yet",
    Provenance.EXPECTED: "not told yet; the agent would place it so",
}
EVIDENCE = {
    "ticket": "its device IDs were reserved for it before",
    "witness": "no other container could be meant",
    "record": "as the kubelet has written it down",
    "order": "of several containers the likeliest",
}
"""What the agent's words mean, surest first."""


def report_pod(  # noqa: PLR0913 -- what it depends on, by keyword
    facts: PodFacts,
    *,
    node: NodeFacts | None,
    held: PodHolding | None,
    why: str,
    events: Iterable[EventReport],
    replaced: bool = False,
) -> PodReport:
    """Complete what the pod itself tells by what its node, placing and Events tell.

    Without *held* it is not known, or nothing any more. *why* is why a pod waits; of others that is
    found out here. It is *replaced* where its owner has made another one since.
    """
    newest = newest_first(events)
    asked = zip(facts.placed.demand.containers, facts.report.containers, strict=True)
    containers = tuple(_container(demand, each, facts, node, held) for demand, each in asked)
    if facts.report.stage is not Stage.WAITING:
        on_lost = map(_on_lost_cards, containers)
        why = "; ".join(filter(None, (*on_lost, _why(facts.report, newest))))
    return replace(
        facts.report,
        containers=containers,
        replaced=replaced,
        why=why,
        events=newest,
    )


def _on_lost_cards(container: ContainerReport) -> str:
    lost = [part.uuid for part in container.parts if part.lost]
    return f"container {container.name} is on {lost_in_words(lost)}" if lost else ""


def _why(pod: PodReport, events: Sequence[EventReport]) -> str:
    stage = pod.stage
    if stage is Stage.SUCCEEDED:
        return ""
    if stage is Stage.REFUSED:
        return refusal_text(pod.message) or pod.reason
    if stage is Stage.FAILED:
        wrong = [each for each in pod.statuses if each.ending and each.ending.exit_code]
        said = [_joined(pod.reason, pod.message), *map(status_in_words, wrong)]
        return "; ".join(filter(None, said)) or "its phase is Failed, and nobody has said why"
    for event in events:
        if event.reason == _VETOED and stage in (Stage.STARTING, Stage.FAILING):
            return event.message
    # Of one that runs again, somebody who looks for what is wrong wants to know that it did not.
    wrong_now = failing(pod.statuses)
    again = [each for each in pod.statuses if each.restarts and each.ending]
    return "; ".join(map(status_in_words, [wrong_now] if wrong_now else again))


def status_in_words(status: ContainerStatus) -> str:
    """Write how a container stands: why it waits, how it ended, how often it was started again."""
    said = [_joined(status.reason, status.message)]
    ending = status.ending
    if ending is not None:
        text = ", ".join(filter(None, (ending.reason, f"exit code {status_code(ending)}")))
        last = "" if status.state == "terminated" else "last ended with "
        said.append(_joined(f"{last}{text}", ending.message))
    if status.restarts:
        said.append(f"restarted {count_of(status.restarts, 'time')}")
    return f"{status.name}: {'; '.join(filter(None, said)) or status.state or 'nothing is told'}"


def status_code(ending: Ending) -> str:
    """Write an exit code, and the signal that it stands for: a runtime adds 128 to it."""
    number = ending.signal or ending.exit_code - 128
    signal = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{ending.exit_code}{signal}"


def _joined(*parts: str) -> str:
    return ": ".join(filter(None, parts))


def known_by(container: ContainerReport) -> str:
    """Write how it is known which cards a container has; empty where nothing is."""
    if container.source is None:
        return ""
    meant = EVIDENCE.get(container.evidence, "")
    evidence = f"evidence {': '.join(filter(None, (container.evidence, meant)))}"
    by = _BY.get(container.source, "")
    return f"{by}, {evidence}" if container.evidence else by


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
