"""How amounts, ages and holders are written in a terminal. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from placement.cluster.holdings import Provenance
from view.model.reports import ContainerReport, Freshness, Gap, Holder, Part, Stage
from view.model.words import EVIDENCE, count_of, gaps_in_words
from view.terminal.layout import BAD, DIM, GOOD, PLAIN, WARN, Cell, TextLine, cell, line

STAGES = {
    Stage.WAITING: WARN,
    Stage.STARTING: WARN,
    Stage.RUNNING: GOOD,
    Stage.FAILING: BAD,
    Stage.REFUSED: BAD,
    Stage.SUCCEEDED: DIM,
    Stage.FAILED: BAD,
}

HOW = {
    Provenance.RECORDED: "",
    Provenance.CHOSEN: "chosen",
    Provenance.EXPECTED: "expected",
    Provenance.UNSEEN: "",
}
"""How surely it is known that a container holds a card; nothing is said where it is recorded."""

_PREFIXES = ("NVIDIA ", "Tesla ", "GeForce ")


def short_model(model: str) -> str:
    """Return a product name without its maker."""
    for prefix in _PREFIXES:
        model = model.removeprefix(prefix)
    return model


def requests_of(containers: Iterable[ContainerReport]) -> str:
    """Write what a pod asks for: cores and memory blocks of each container."""
    return ", ".join(amount(each.cores, each.blocks) for each in containers)


def amount(cores: int, blocks: int) -> str:
    """Write cores and memory blocks."""
    asked = count_of(cores, "core")
    return f"{asked} + {count_of(blocks, 'block')}" if blocks else asked


def cards_of(container: ContainerReport) -> str:
    """Write the cards that a container has got: their indices, or else their UUIDs."""
    return ",".join(map(_card_of, container.parts))


def _card_of(part: Part) -> str:
    if part.lost:
        return f"{part.uuid} (not there)"
    return part.uuid if part.index is None else str(part.index)


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers, those that follow each other as a range: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def evidence_of(container: ContainerReport) -> str:
    """Write how it is known which cards a container has."""
    if container.source is None:
        return ""
    return container.evidence or HOW[container.source] or container.source.value


def show_evidence(words: Iterable[str]) -> list[TextLine]:
    """Return what the words of the column EVIDENCE mean that are shown."""
    meant = {**EVIDENCE, "chosen": "a scheduler chose the card", "expected": "nobody has said yet"}
    found = {*words}
    said = "; ".join(f"{word}: {text}" for word, text in meant.items() if word in found)
    return [line(f"Evidence of the cards: {said}.", DIM)] if said else []


def holder_of(holder: Holder, *, evidence: bool = False) -> Cell:
    """Write who holds how much of a card."""
    much = f"{holder.cores}+{holder.blocks}"
    if holder.source is Provenance.UNSEEN:
        return cell(f"not visible to you {much}", DIM)
    how = HOW[holder.source] or (holder.evidence if evidence else "")
    text = f"{holder.namespace}/{holder.pod}/{holder.container} {much}"
    return cell(f"{text} ({how})" if how else text, PLAIN)


def show_gaps(gaps: Sequence[Gap]) -> list[TextLine]:
    """Return what is not known, since it could not be read."""
    return [line(each, WARN) for each in gaps_in_words(gaps)]


def as_of(fresh: Freshness, now: float, server: str) -> TextLine:
    """Write how old what is shown is, and from where; loudly where it may not be so any more."""
    seconds = max(int(now - fresh.at), 0)
    at = f"{datetime.fromtimestamp(fresh.at, UTC):%H:%M:%S} UTC, {seconds} s ago, by {server}"
    if fresh.stale:
        return line(f"STALE: what follows was so at {at}; {fresh.stale}", f"bold {BAD}")
    return line(f"As of {at}", DIM)
