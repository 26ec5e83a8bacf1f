"""``kubectl gpu``: nodes and their cards, then pending, failing and refused pods. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from common.text import cut
from contract.text import format_count
from view.model.pod_groups import PodGroup, group_pods
from view.model.reports import (
    CardReport,
    ClusterReport,
    DeniedReport,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.words import age, units
from view.terminal.layout import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    Cell,
    Column,
    Grid,
    Page,
    Row,
    TextLine,
    bar,
    cell,
    level,
    line,
    table,
)
from view.terminal.words import amounts_of, holder_of, requests_of, short_model

MOST_WITH_CARDS = 40
"""With more nodes than this, cards are shown only of nodes that the user names."""

STAGES_WITH_REASON = frozenset(
    {Stage.PENDING, Stage.REFUSED, Stage.STARTING, Stage.FAILING, Stage.FAILED}
)
"""Pods in these stages are listed below the nodes, with a reason."""

_MOST_PODS = 10
_MOST_HOLDERS = 4
_LONGEST_REASON = 400
_GIB = 2**30

_COLUMNS = (
    Column("NODE/CARD"),
    Column("MODEL", drop=2),
    Column("STATUS"),
    Column("CORES"),
    Column("", drop=4),
    Column("BLOCKS"),
    Column("", drop=3),
    Column("FREE / HELD BY (CORES+BLOCKS)", wraps=True),
)


def show_nodes(
    report: ClusterReport,
    now: datetime,
    *,
    named: bool = False,
    wide: bool = False,
    every: bool = False,
) -> Page:
    """Lay out the cluster; if nodes were *named*, always with cards and without the pods below."""
    nodes = report.nodes
    cards = named or wide or len(nodes) <= MOST_WITH_CARDS
    rows: list[Row] = []
    for node in nodes:
        rows.append(_node_row(node, wide=wide))
        for card in node.cards if cards else ():
            mark = "\u2514" if card is node.cards[-1] else "\u251c"
            row = _card_row(card, mark=mark, wide=wide, available=not node.problem)
            if node.unconfirmed and not (card.holders or card.withheld):
                row = (*row[:-1], cell("may be held", WARN))
            rows.append(row)
    page: list[Grid | TextLine] = []
    if rows:
        page += [Grid(_COLUMNS, tuple(rows)), line(units(node.memory_block for node in nodes), DIM)]
        if not cards:
            page.append(line("To see the cards of a node: kubectl gpu nodes NAME", DIM))
    elif any(gap.what == "nodes" for gap in report.gaps):
        page.append(line("Nodes and cards: unknown", WARN))
    else:
        page.append(line("No node has GPUs: no agent has written an inventory of cards."))
    if wide:
        page += _links(nodes)
    return page if named else [*page, *_below(report, now, every=every)]


def _node_row(node: NodeReport, *, wide: bool) -> Row:
    ok = not node.problem
    return (
        cell(node.name, BOLD),
        cell(_models(node), BOLD),
        cell("Unknown", WARN)
        if ok and node.refusing_unknown
        else cell("Refusing", BAD)
        if ok and node.refusing
        else cell("Available", GOOD)
        if ok
        else cell("Unavailable", BAD),
        *_amounts(node.cores_held, node.cores, node.blocks_held, node.blocks),
        _free(node, wide=wide),
    )


def _models(node: NodeReport) -> str:
    counted = Counter(short_model(card.model) for card in node.cards)
    return ", ".join(f"{count}x {model}" for model, count in sorted(counted.items()))


def _free(node: NodeReport, *, wide: bool) -> Cell:
    if node.unusable:
        return cell("; ".join((node.unusable, *node.notes)), BAD)
    share, parts = node.largest_share, []
    if node.whole_cards:
        parts.append(format_count(node.whole_cards, "whole card"))
    if share is not None:
        parts.append(f"largest share: {amounts_of(share.cores, share.blocks)}")
    free = "; ".join(parts) or ("unknown" if node.unconfirmed else "none")
    if wide and node.memory_block:
        held, total = (each * node.memory_block / _GIB for each in (node.blocks_held, node.blocks))
        free += f"; {held:g} of {total:g} GiB held"
    return cell("; ".join((free, *node.notes)), WARN if node.notes or not parts else BOLD)


def show_cards(cards: Sequence[CardReport], *, available: bool = True) -> Grid:
    """Lay out cards of one node, with all their holders."""
    columns = (Column("CARD"), *_COLUMNS[1:-1], Column("HELD BY (CORES+BLOCKS)", wraps=True))
    rows = tuple(
        (
            cell(card.index),
            *_card_row(card, mark="", wide=False, most=None, available=available)[1:],
        )
        for card in cards
    )
    return Grid(columns, rows)


def _card_row(
    card: CardReport,
    *,
    mark: str,
    wide: bool,
    most: int | None = _MOST_HOLDERS,
    available: bool = True,
) -> Row:
    # Without its agent nobody knows whether a card is still healthy.
    status = cell("Healthy", GOOD) if available else cell("Unknown", DIM)
    model = short_model(card.model)
    if wide:
        numa = "" if card.numa is None else f" numa {card.numa}"
        model = f"{model} {card.memory / _GIB:.3g}GiB{numa} {card.uuid}"
    holders = _held_by(card, wide=wide, most=None if wide else most)
    if card.withheld:
        status = cell("Cordoned", WARN)
    if card.unhealthy:
        status = cell("Unhealthy", BAD)
        notes = (card.unhealthy, "cordoned" * card.cordoned, holders.text)
        holders = cell("; ".join(filter(None, notes)), BAD)
    return (
        cell(f"{mark} {card.index}"),
        cell(model),
        status,
        *_amounts(card.cores_held, card.cores, card.blocks_held, card.blocks),
        holders,
    )


def _held_by(card: CardReport, *, wide: bool, most: int | None) -> Cell:
    shown = card.holders[:most]
    texts = [holder_of(each, evidence=wide).text for each in shown]
    if len(shown) < len(card.holders):
        texts.append(f"{len(card.holders) - len(shown)} more")
    return cell(", ".join(texts), BAD if card.overbooked else "")


def _amounts(cores_held: int, cores: int, blocks_held: int, blocks: int) -> tuple[Cell, ...]:
    if not cores and not blocks:
        return cell("<unknown>", DIM), cell(""), cell("<unknown>", DIM), cell("")
    return (
        cell(f"{cores_held}/{cores}"),
        cell(bar(cores_held, cores), level(cores_held, cores)),
        cell(f"{blocks_held}/{blocks}"),
        cell(bar(blocks_held, blocks), level(blocks_held, blocks)),
    )


def _links(nodes: Sequence[NodeReport]) -> list[TextLine]:
    lines = []
    for node in nodes:
        kinds = {
            link.cards: link.kind for link in node.links
        }  # if a pair has two links, NVLink comes last
        pairs = [f"{one}-{other} {kind}" for (one, other), kind in kinds.items()]
        if pairs:
            lines.append(line(f"{node.name}: links {', '.join(pairs)}", DIM))
    return lines


# --- pods that need attention -------------------------------------------------------------


def _below(report: ClusterReport, now: datetime, *, every: bool) -> list[Grid | TextLine]:
    page: list[Grid | TextLine] = []
    for title, stages, heading in _SECTIONS:
        pods = [
            pod
            for pod in report.pods
            if pod.stage in stages and not pod.replaced and (pod.why or pod.stage is Stage.PENDING)
        ]
        page += _pods(title, pods, heading, now, every=every)
    hint = bool(page)
    if any(gap.what == "pods" and gap.whole for gap in report.gaps):
        page += [line(""), line("Pending, failing and refused pods: unknown", WARN)]
    if report.denied:
        shown = report.denied if every else report.denied[:_MOST_PODS]
        count = len(report.denied)
        heading = f"Pod creation denied ({format_count(count, 'workload')})"
        heading += f", {len(shown)} shown" if count > len(shown) else ""
        grid = table(
            shown,
            (Column("WORKLOAD"), lambda each: f"{each.kind} {each.namespace}/{each.name}"),
            (Column("LAST SEEN"), lambda each: age(each.at, now)),
            (Column("COUNT", drop=1), lambda each: each.count),
            (Column("REASON", wraps=True), lambda each: cut(_why_denied(each), _LONGEST_REASON)),
            keep=True,
        )
        page += [line(""), line(heading, BOLD), grid]
    if hint:
        text = "To see why, and what would help: kubectl gpu explain NAMESPACE/POD"
        page += [line(""), line(text, DIM)]
    return page


def _why_denied(denied: DeniedReport) -> str:
    """Return why pods are denied, and if others of the workload exist, how many are missing."""
    some = denied.missing is not None and denied.missing < (denied.wanted or 0)
    return f"{denied.lacks} cannot be created: {denied.message}" if some else denied.message


_SECTIONS = (
    ("Pending pods", {Stage.PENDING}, "REASON"),
    ("Failing pods", {Stage.FAILING}, "REASON"),
    ("Starting pods", {Stage.STARTING}, "REASON"),
    ("Refused by the node", {Stage.REFUSED}, "REASON (WHEN REFUSED)"),
    ("Failed pods", {Stage.FAILED}, "REASON"),
)


def _pods(
    title: str, pods: Sequence[PodReport], reason: str, now: datetime, *, every: bool
) -> list[Grid | TextLine]:
    if not pods:
        return []
    if every:
        groups = [PodGroup((pod,)) for pod in sorted(pods, key=lambda pod: (pod.created, pod.name))]
    else:
        groups = group_pods(pods)
    past = pods[0].stage in (Stage.REFUSED, Stage.FAILED)
    if past:  # the newest first; otherwise the oldest first
        groups.sort(key=lambda each: each.pods[-1].created, reverse=True)
    shown = groups if every else groups[:_MOST_PODS]
    heading = f"{title} ({len(pods)})"
    shown_pods = sum(len(group.pods) for group in shown)
    if len(shown) < len(pods):
        heading += f", {shown_pods} shown" if shown_pods < len(pods) else ""
        heading += "; one row per pod: --all"
    grid = table(
        shown,
        (Column("POD"), lambda group: group.name),
        (Column("AGE"), lambda group: age(group.pods[-1 if past else 0].created, now)),
        (Column("REQUESTS", drop=1), lambda group: requests_of(group.pods[0].containers)),
        (Column(reason, wraps=True), lambda group: cut(group.why, _LONGEST_REASON)),
        keep=True,
    )
    return [line(""), line(heading, BOLD), grid]
