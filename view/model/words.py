"""Texts that the terminal and the page share. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from contract.text import format_count
from placement.cluster.holdings import Provenance
from view.model.reports import ContainerReport, Gap

LONGEST = 1000
"""Longest text, in characters, that is taken from a pod, a node or an Event."""

_MIB = 2**20
_UNKNOWN = {
    "nodes": "cards, free amounts and what fits",
    "pods": "pending pods and holders of cards; held amounts are those that agents last reported",
    "events": "events of pods; reasons may be missing",
}

_SOURCES = {
    Provenance.RECORDED: "reported by the agent",
    Provenance.CHOSEN: "chosen by a scheduler, not confirmed by the agent yet",
    Provenance.EXPECTED: "not reported yet, estimated as the agent would place it",
}
EVIDENCE = {
    "claim": "its resource claim names it",
    "ticket": "its device IDs were reserved for it before",
    "witness": "no other container matched the call",
    "record": "read from the kubelet's checkpoint",
    "order": "a guess: the likeliest of several containers",
}
"""Meaning of the agent's evidence words, the strongest evidence first."""


def safe(text: str) -> str:
    """Return text without characters that control a terminal or hide or reorder other characters.

    Control and format characters are escaped as in Python; line ends and tabs become spaces.
    """
    if text.isprintable():
        return text
    return "".join(map(_safe, text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ")))


def _safe(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def clamp(value: object, most: int = LONGEST) -> str:
    """Return the value as text, cut after *most* characters."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({format_count(len(text) - most, 'more character')})"


def units(sizes: Iterable[int]) -> str:
    """Explain cores and blocks in a sentence; *sizes* are the block sizes of the nodes."""
    known = sorted({size // _MIB for size in sizes if size})
    blocks = f" 1 block is {' or '.join(map(str, known))} MiB of GPU memory." if known else ""
    return f"100 cores are one card.{blocks}"


def describe_gaps(gaps: Sequence[Gap]) -> list[str]:
    """Return what is unknown, which permissions are missing, and the command that grants them."""
    if not gaps:
        return []
    gaps = [*{(gap.what, gap.namespace, gap.some): gap for gap in reversed(gaps)}.values()][::-1]
    resources = ",".join(dict.fromkeys(gap.what for gap in gaps))
    role = "gpu-viewer"
    grant = (
        f"An admin can grant it: kubectl create clusterrole {role} --verb=get,list,watch "
        f"--resource={resources} && kubectl create clusterrolebinding {role} --clusterrole={role} "
        "--user=USER"
    )
    return [*map(_gap, gaps), grant]


def _gap(gap: Gap) -> str:
    unknown, scope = _UNKNOWN.get(gap.what, gap.what), ""
    if gap.some:
        scope = " (except nodes of your pods)"
    elif gap.namespace:
        scope = f" outside namespace {gap.namespace}"
        if gap.what == "pods":
            unknown = "pending pods; held amounts are those that agents last reported"
    reason = f" ({gap.reason})" if gap.reason else ""
    return f"Unknown{scope}: {unknown}. Missing permission: {gap.verb} {gap.what}{reason}"


def checked(*, slices: bool) -> str:
    """Return what is checked of a node for a pod, and what is not.

    What its own spec excludes is :class:`placement.cluster.selectors.NodeSelection`. On nodes with
    ResourceSlices (*slices*) less is checked: kube-scheduler itself chooses cards.
    """
    return (
        "Checked: cards, cordons, whether a node is Ready, and what the pod's own spec excludes: "
        "OS, node selector, required node affinity, taints. Not checked: other affinity, CPU, "
        "memory, volumes and quotas"
        + "; whether kube-scheduler sees the cards (kubectl gpu doctor)" * slices
        + "."
    )


def summarize(reasons: Iterable[str]) -> str:
    """List each reason once with its number of nodes, the most frequent first."""
    counted = sorted(Counter(reasons).items(), key=lambda each: (-each[1], each[0]))
    return "; ".join(f"{reason} ({format_count(count, 'node')})" for reason, count in counted)


def evidence_text(container: ContainerReport) -> str:
    """Describe how the cards of a container are known; empty if it has none."""
    if container.source is None:
        return ""
    meaning = EVIDENCE.get(container.evidence, "")
    evidence = f"evidence {': '.join(filter(None, (container.evidence, meaning)))}"
    source = _SOURCES.get(container.source, "")
    return f"{source}, {evidence}" if container.evidence else source


def of_each(split: int) -> str:
    """Return what follows the amounts of a share of several cards; empty for one card."""
    return f" of each of {split} cards" if split > 1 else ""


def name_cards(indices: Sequence[object]) -> str:
    """Format one or several cards: ``card 0``, ``cards 0, 1``."""
    return f"card{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def missing_node(name: str) -> str:
    """Return that a node does not exist."""
    return f"node {name} does not exist"


def name_lost_cards(uuids: Sequence[str]) -> str:
    """Describe allocated cards that are missing on the node."""
    what = "a missing card" if len(uuids) == 1 else "missing cards"
    return f"{what} ({', '.join(uuids)})"


ESTIMATES = (Provenance.CHOSEN, Provenance.EXPECTED)
"""Without a record a container may be on another card than the one where it is shown."""
UNRECORDED = "not recorded by the agent: the cards shown are an estimate"
"""Said of running containers; for others the record comes within seconds."""


def uncordon_command(node: str, entries: Sequence[str], annotation: str) -> str:
    """Return the command that removes entries of *annotation*, ``gpu-cordoned``, that name no card.

    What no shell can be given, or no line can hold, goes with the whole annotation.
    """
    readable = all(each.isprintable() and len(each) <= _LONGEST_ENTRY for each in entries)
    if not readable or len(entries) > _MOST_ENTRIES or "{}" in "".join(entries):
        return f"kubectl annotate node {node} {annotation}-  # ends the cordons of all its cards"
    end = "-- " if any(each.startswith("-") for each in entries) else ""
    return f"kubectl gpu uncordon {node} {end}{' '.join(map(shlex.quote, entries))}"


_LONGEST_ENTRY, _MOST_ENTRIES = 120, 8


def name_some(names: Sequence[str], most: int = 3) -> str:
    """List at most *most* names, then how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def rfc3339(at: datetime) -> str:
    """Format a time in UTC as the API server does."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(time: timedelta) -> str:
    """Format a duration in words: ``20 s``, ``5 min``."""
    number, unit = _in_largest_unit(time)
    return f"{number} {'min' if unit == 'm' else unit}"


def age(created: str, now: datetime) -> str:
    """Format how long ago a time was, as ``kubectl`` does."""
    try:
        time = now - datetime.fromisoformat(created)
    except (ValueError, TypeError):
        return "<unknown>"
    number, unit = _in_largest_unit(max(time, timedelta()))
    return f"{number}{unit}"


def _in_largest_unit(time: timedelta) -> tuple[int, str]:
    """Return a duration in its largest unit of which there are several."""
    seconds = int(time.total_seconds())
    for least, size, unit in ((172_800, 86_400, "d"), (10_800, 3600, "h"), (120, 60, "m")):
        if seconds >= least:
            return seconds // size, unit
    return seconds, "s"
