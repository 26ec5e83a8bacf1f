"""What is said alike in a terminal and on the page. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from placement.cluster.holdings import Provenance
from view.model.reports import ContainerReport, Gap

LONGEST = 1000
"""Characters that are kept of what a pod, a node or an Event says of itself."""

_MIB = 2**20
_LOST = {
    "nodes": "which cards there are, what is free and what fits",
    "pods": "which pods wait, and who holds what; how much is held is their agents' last word",
    "events": "what was said of pods; reasons may be missing",
}

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


def safe(text: str) -> str:
    """Return text of which no character steers a terminal, hides others or turns them around.

    Control and format characters are written as Python escapes them; line ends become spaces.
    """
    if text.isprintable():
        return text
    return "".join(map(_safe, text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ")))


def _safe(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def clamp(value: object, most: int = LONGEST) -> str:
    """Return text, of which the end is left out where it is very long."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


def units(sizes: Iterable[int]) -> str:
    """Return what the units of a request are, in a sentence."""
    known = sorted({size // _MIB for size in sizes if size})
    blocks = f" 1 block is {' or '.join(map(str, known))} MiB of a card's memory." if known else ""
    return f"100 cores are one card.{blocks}"


def gaps_in_words(gaps: Sequence[Gap]) -> list[str]:
    """Return what is not known since it may not be read, which rights are missing, and their cure.

    That somebody may not read something is never a fact about the cluster.
    """
    if not gaps:
        return []
    gaps = [*{(gap.what, gap.namespace, gap.some): gap for gap in reversed(gaps)}.values()][::-1]
    resources = ",".join(dict.fromkeys(gap.what for gap in gaps))
    role = "gpu-viewer"
    grant = (
        f"An admin can grant this: kubectl create clusterrole {role} --verb=get,list,watch "
        f"--resource={resources} && kubectl create clusterrolebinding {role} --clusterrole={role} "
        "--user=USER"
    )
    return [*map(_gap, gaps), grant]


def _gap(gap: Gap) -> str:
    lost, but = _LOST.get(gap.what, gap.what), ""
    if gap.some:
        but = ", but for nodes of your pods"
    elif gap.namespace:
        but = f" outside namespace {gap.namespace}"
        if gap.what == "pods":
            lost = "which pods wait; what they hold is known by their agents' last word"
    said = f" ({gap.reason})" if gap.reason else ""
    return f"Unknown{but}: {lost}. Missing right: {gap.verb} {gap.what}{said}"


def summarize(reasons: Iterable[str]) -> str:
    """Return equal reasons once, with how many nodes have each, the most frequent first."""
    counted = sorted(Counter(reasons).items(), key=lambda each: (-each[1], each[0]))
    return "; ".join(f"{reason} ({count_of(count, 'node')})" for reason, count in counted)


def known_by(container: ContainerReport) -> str:
    """Write how it is known which cards a container has; empty where nothing is."""
    if container.source is None:
        return ""
    meant = EVIDENCE.get(container.evidence, "")
    evidence = f"evidence {': '.join(filter(None, (container.evidence, meant)))}"
    by = _BY.get(container.source, "")
    return f"{by}, {evidence}" if container.evidence else by


def count_of(count: int, noun: str) -> str:
    """Write a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cards_in_words(indices: Sequence[object]) -> str:
    """Write one card or several."""
    return f"card{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def lost_in_words(uuids: Sequence[str]) -> str:
    """Write that a recorded card is not on its node any more."""
    what = "a card that is not there" if len(uuids) == 1 else "cards that are not there"
    return f"{what} ({', '.join(uuids)})"


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Write some of several names, and how many there are besides."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def age(created: str, now: datetime) -> str:
    """Write how long ago something was, as ``kubectl`` does."""
    try:
        seconds = int((now - datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):
        return "<unknown>"
    seconds = max(seconds, 0)
    for least, unit in ((172_800, 86_400), (10_800, 3600), (120, 60)):
        if seconds >= least:
            return f"{seconds // unit}{ {86_400: 'd', 3600: 'h', 60: 'm'}[unit] }"
    return f"{seconds}s"
