"""Amounts, cards, holders and evidence as text for the terminal. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from contract.text import format_count
from placement.cluster.holdings import Provenance
from view.model.reports import ContainerReport, Freshness, Holder, Part, Stage
from view.model.words import EVIDENCE, of_each
from view.terminal.layout import BAD, DIM, GOOD, PLAIN, WARN, Cell, TextLine, cell, line

STAGE_STYLES = {
    Stage.PENDING: WARN,
    Stage.STARTING: WARN,
    Stage.RUNNING: GOOD,
    Stage.FAILING: BAD,
    Stage.REFUSED: BAD,
    Stage.SUCCEEDED: DIM,
    Stage.FAILED: BAD,
}

_SOURCE_WORDS = {
    Provenance.RECORDED: "",
    Provenance.CHOSEN: "chosen",
    Provenance.EXPECTED: "expected",
    Provenance.UNSEEN: "",
}
"""Words for allocations that no agent has confirmed; confirmed ones need none."""

_PREFIXES = ("NVIDIA ", "Tesla ", "GeForce ")


def short_model(model: str) -> str:
    """Return a product name without the manufacturer's prefix."""
    for prefix in _PREFIXES:
        model = model.removeprefix(prefix)
    return model


def requests_of(containers: Iterable[ContainerReport]) -> str:
    """Format the request of each container: cores and memory blocks."""
    return ", ".join(map(request_of, containers))


def request_of(container: ContainerReport) -> str:
    """Format a request: ``40 cores + 16 blocks``, for several cards what it has of each."""
    split = container.split
    return amounts_of(container.cores // split, container.blocks // split) + of_each(split)


def amounts_of(cores: int, blocks: int) -> str:
    """Format cores and memory blocks: ``40 cores + 16 blocks``."""
    text = format_count(cores, "core")
    return f"{text} + {format_count(blocks, 'block')}" if blocks else text


def cards_of(container: ContainerReport) -> str:
    """Format the cards of a container: their indices, or UUIDs if an index is unknown."""
    return ",".join(map(_card_of, container.parts))


def _card_of(part: Part) -> str:
    card = part.uuid if part.lost or part.index is None else str(part.index)
    return f"{card or part.index} (missing)" if part.lost else card


def ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers, consecutive ones as a range: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def evidence_of(container: ContainerReport) -> str:
    """Return the evidence word for the cards of a container; empty if it has none."""
    if container.source is None:
        return ""
    return container.evidence or _SOURCE_WORDS[container.source] or container.source.value


def show_evidence(words: Iterable[str]) -> list[TextLine]:
    """Return a legend for the words that the column EVIDENCE shows."""
    meanings = {
        **EVIDENCE,
        "chosen": "a scheduler chose the card, not confirmed yet",
        "expected": "not reported yet, estimated",
    }
    found = {*words}
    legend = "; ".join(f"{word}: {text}" for word, text in meanings.items() if word in found)
    return [line(f"Evidence: {legend}.", DIM)] if legend else []


def holder_of(holder: Holder, *, evidence: bool = False) -> Cell:
    """Format a holder of a card and its amounts: ``default/train/c0 60+16``."""
    amounts = f"{holder.cores}+{holder.blocks}"
    if holder.source is Provenance.UNSEEN:
        return cell(f"hidden (no permission) {amounts}", DIM)
    source = _SOURCE_WORDS[holder.source] or (holder.evidence if evidence else "")
    text = f"{holder.namespace}/{holder.pod}/{holder.container} {amounts}"
    return cell(f"{text} ({source})" if source else text, PLAIN)


def describe_age(fresh: Freshness, now: float, server: str) -> TextLine:
    """Return a line with source and age of the data, in red if the data may be outdated."""
    seconds = max(int(now - fresh.at), 0)
    time = f"{datetime.fromtimestamp(fresh.at, UTC):%H:%M:%S} UTC"
    source = f"from {server} at {time} ({seconds}s ago)"
    if fresh.stale:
        return line(f"STALE: data {source}: {fresh.stale}", f"bold {BAD}")
    return line(f"Data {source}", DIM)
