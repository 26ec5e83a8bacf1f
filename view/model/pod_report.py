"""The report on one pod: what it asks for, what it has got, how far it has come and why. Pure."""

from collections.abc import Sequence
from signal import Signals

from contract.demand import ContainerDemand
from view.model.events import newest_first
from view.model.nodes import NodeFacts
from view.model.occupancy import Held, quotas
from view.model.pods import PodFacts, refusal_text
from view.model.reports import (
    ContainerReport,
    ContainerStatus,
    Ending,
    EventReport,
    Part,
    PodReport,
    Source,
    Stage,
)
from view.model.words import count_of

_VETOED = "GPUStartVetoed"

_BY = {
    Source.RECORDED: "by the agent's record",
    Source.CHOSEN: "chosen by a scheduler, not confirmed by the agent yet",
    Source.EXPECTED: "not told yet; the agent would place it so",
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
    held: Held | None,
    why: str,
    events: Sequence[EventReport],
    replaced: bool = False,
) -> PodReport:
    """Make the report.

    Args:
        facts: the pod.
        node: where it is bound, if it is and that node is known.
        held: what it holds there; ``None`` where that is not known, or nothing any more.
        why: why it waits; of other pods this is found out here.
        events: about it, in any order.
        replaced: whether its owner has made another one since.
    """
    placed, stage = facts.placed, stage_of(facts)
    newest = newest_first(list(events))
    return PodReport(
        namespace=placed.namespace,
        name=placed.name,
        uid=placed.uid,
        owner=facts.owner,
        node=placed.node,
        phase=facts.phase,
        reason=facts.reason,
        message=facts.message,
        stage=stage,
        deleting=facts.deleting,
        created=facts.created,
        scheduler=facts.scheduler,
        containers=tuple(_container(each, facts, node, held) for each in placed.demand.containers),
        wishes=facts.wishes,
        statuses=facts.statuses,
        replaced=replaced,
        why=why if stage is Stage.WAITING else _why(facts, stage, newest),
        events=newest,
    )


def stage_of(facts: PodFacts) -> Stage:
    """Return how far a pod has come."""
    if facts.ended:
        if facts.phase == "Succeeded":
            return Stage.SUCCEEDED
        return Stage.REFUSED if facts.rejected else Stage.FAILED
    if not facts.placed.node:
        return Stage.WAITING
    if facts.failing is not None:
        return Stage.FAILING
    return Stage.RUNNING if facts.phase == "Running" else Stage.STARTING


def _why(facts: PodFacts, stage: Stage, events: Sequence[EventReport]) -> str:
    if stage is Stage.SUCCEEDED:
        return ""
    if stage is Stage.REFUSED:
        return refusal_text(facts.message) or facts.reason
    if stage is Stage.FAILED:
        wrong = [each for each in facts.statuses if each.ending and each.ending.exit_code]
        said = [_joined(facts.reason, facts.message), *map(status_in_words, wrong)]
        return "; ".join(filter(None, said)) or "its phase is Failed, and nobody has said why"
    for event in events:
        if event.reason == _VETOED and stage in (Stage.STARTING, Stage.FAILING):
            return event.message
    if facts.failing is not None:
        return status_in_words(facts.failing)
    # It runs again. Somebody who looks for what is wrong wants to know that it did not.
    again = [each for each in facts.statuses if each.restarts and each.ending]
    return "; ".join(map(status_in_words, again))


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


def container_report(container: ContainerDemand) -> ContainerReport:
    """Make the report on a container of which only the request is known."""
    asked = container.demand
    return ContainerReport(container.name, container.kind.value, asked.cores, asked.memory)


def _container(
    container: ContainerDemand, facts: PodFacts, node: NodeFacts | None, held: Held | None
) -> ContainerReport:
    asked, evidence = container_report(container), dict(facts.evidence)
    parts, source = _parts(container, facts, node, held)
    return ContainerReport(
        asked.name,
        asked.kind,
        asked.cores,
        asked.blocks,
        parts,
        source,
        evidence.get(container.name, "") if source is Source.RECORDED else "",
    )


def _parts(
    container: ContainerDemand, facts: PodFacts, node: NodeFacts | None, held: Held | None
) -> tuple[tuple[Part, ...], Source | None]:
    name = container.name
    cards = node.placed.cards if node is not None else ()
    if held is not None and node is not None:
        places = held.cards.get(name, ())
        found = tuple(
            Part(card.uuid, card.index, card.model, cores, blocks)
            for place, cores, blocks in quotas(
                container, places, [cards[place].blocks for place in places]
            )
            for card in (cards[place],)
        )
        return found, held.sources.get(name)
    uuids = dict(facts.placed.recorded).get(name)
    if uuids is not None:
        known = {card.uuid: card for card in cards}
        listed = [known.get(uuid) for uuid in uuids]
        sizes = [card.blocks if card else 0 for card in listed]
        parts = tuple(
            Part(uuids[at], card.index, card.model, cores, blocks)
            if (card := listed[at]) is not None
            else Part(uuids[at], None, "", cores, blocks)
            for at, cores, blocks in quotas(container, range(len(uuids)), sizes)
        )
        return parts, Source.RECORDED
    chosen = dict(facts.placed.chosen).get(name)
    if chosen is not None and facts.placed.node and not facts.ended:
        blocks_of = {card.index: card.blocks for card in cards}
        sizes = [blocks_of.get(index, 0) for index in chosen]
        parts = tuple(
            Part("", index, "", cores, blocks)
            for index, cores, blocks in quotas(container, chosen, sizes)
        )
        return parts, Source.CHOSEN
    return (), None
