"""``kubectl gpu``: nodes and their cards, and below them what waits or was refused. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from common.text import cut
from view.model.pod_report import PodGroup, group_pods
from view.model.reports import CardReport, ClusterReport, NodeReport, PodReport, Stage
from view.model.words import age, count_of, units
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
from view.terminal.words import (
    amount,
    holder_of,
    requests_of,
    short_model,
)

MOST_WITH_CARDS = 40
"""Of more nodes than these, cards are shown only where nodes are named."""

UNSETTLED = frozenset({Stage.WAITING, Stage.REFUSED, Stage.STARTING, Stage.FAILING, Stage.FAILED})
"""Of pods in these stages the page says why; the others are holders of cards."""

_MOST_PODS = 10
_MOST_HOLDERS = 4
_LONGEST_WHY = 400
_GIB = 2**30

_COLUMNS = (
    Column("NODE/CARD"),
    Column("MODEL", drop=2),
    Column("HEALTH"),
    Column("CORES"),
    Column("", drop=4),
    Column("BLOCKS"),
    Column("", drop=3),
    Column("FITS / HELD BY (CORES+BLOCKS)", wraps=True),
)


def show_nodes(
    report: ClusterReport,
    now: datetime,
    *,
    named: bool = False,
    wide: bool = False,
    every: bool = False,
) -> Page:
    """Lay the cluster out; where nodes were *named*, with cards, and without the pods below."""
    nodes = report.nodes
    cards = named or wide or len(nodes) <= MOST_WITH_CARDS
    rows: list[Row] = []
    for node in nodes:
        rows.append(_node_row(node, wide=wide))
        for card in node.cards if cards else ():
            mark = "\u2514" if card is node.cards[-1] else "\u251c"
            rows.append(_card_row(card, mark=mark, wide=wide, served=not node.problem))
    page: list[Grid | TextLine] = []
    if rows:
        page += [Grid(_COLUMNS, tuple(rows)), line(units(node.memory_block for node in nodes), DIM)]
        if not cards:
            page.append(line("Cards of a node: kubectl gpu nodes NAME", DIM))
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
        cell("ok", GOOD) if ok else cell("not served", BAD),
        *_amounts(node.cores_held, node.cores, node.blocks_held, node.blocks),
        _fits(node, wide=wide),
    )


def _models(node: NodeReport) -> str:
    counted = Counter(short_model(card.model) for card in node.cards)
    return ", ".join(f"{count}x {model}" for model, count in sorted(counted.items()))


def _fits(node: NodeReport, *, wide: bool) -> Cell:
    if node.problem:
        return cell("; ".join((node.problem, *node.notes)), BAD)
    share, parts = node.largest_share, []
    if node.whole_cards:
        parts.append(count_of(node.whole_cards, "whole card"))
    if share is not None:
        parts.append(f"{amount(share.cores, share.blocks)} on one card")
    fits = f"fits {' or '.join(parts)}" if parts else "full"
    if wide and node.memory_block:
        held, total = (each * node.memory_block / _GIB for each in (node.blocks_held, node.blocks))
        fits += f"; {held:g} of {total:g} GiB held"
    return cell("; ".join((fits, *node.notes)), WARN if node.notes or not parts else BOLD)


def show_cards(cards: Sequence[CardReport]) -> Grid:
    """Lay out some cards of one node, with all their holders."""
    columns = (Column("CARD"), *_COLUMNS[1:-1], Column("HELD BY (CORES+BLOCKS)", wraps=True))
    rows = tuple(
        (cell(card.index), *_card_row(card, mark="", wide=False, most=None)[1:]) for card in cards
    )
    return Grid(columns, rows)


def _card_row(
    card: CardReport,
    *,
    mark: str,
    wide: bool,
    most: int | None = _MOST_HOLDERS,
    served: bool = True,
) -> Row:
    well = cell("ok", GOOD) if served else cell("was ok", DIM)  # by an agent that has gone
    model = short_model(card.model)
    if wide:
        numa = "" if card.numa is None else f" numa {card.numa}"
        model = f"{model} {card.memory / _GIB:g}GiB{numa} {card.uuid}"
    holders = _held_by(card, wide=wide, most=None if wide else most)
    if card.unhealthy:
        holders = cell("; ".join(filter(None, (card.unhealthy, holders.text))), BAD)
    return (
        cell(f"{mark} {card.index}"),
        cell(model),
        well if not card.unhealthy else cell("ill", BAD),
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
        return cell("?", DIM), cell(""), cell("?", DIM), cell("")
    return (
        cell(f"{cores_held}/{cores}"),
        cell(bar(cores_held, cores), level(cores_held, cores)),
        cell(f"{blocks_held}/{blocks}"),
        cell(bar(blocks_held, blocks), level(blocks_held, blocks)),
    )


def _links(nodes: Sequence[NodeReport]) -> list[TextLine]:
    lines = []
    for node in nodes:
        kinds = {link.cards: link.kind for link in node.links}  # of two ways NVLink comes last
        pairs = [f"{one}-{other} {kind}" for (one, other), kind in kinds.items()]
        if pairs:
            lines.append(line(f"{node.name}: links {', '.join(pairs)}", DIM))
    return lines


# --- what waits or was refused -----------------------------------------------------------


def _below(report: ClusterReport, now: datetime, *, every: bool) -> list[Grid | TextLine]:
    page: list[Grid | TextLine] = []
    for title, stages, why in _SECTIONS:
        pods = [
            pod
            for pod in report.pods
            if pod.stage in stages and not pod.replaced and (pod.why or pod.stage is Stage.WAITING)
        ]
        page += _pods(title, pods, why, now, every=every)
    hint = bool(page)
    if any(gap.what == "pods" and gap.whole for gap in report.gaps):
        page += [line(""), line("Pods that wait, fail or were refused: unknown", WARN)]
    if report.denied:
        shown = report.denied if every else report.denied[:_MOST_PODS]
        all_of_them = len(report.denied)
        more = f": {all_of_them}, {len(shown)} of them" if all_of_them > len(shown) else ""
        grid = table(
            shown,
            (Column("WORKLOAD"), lambda each: f"{each.kind} {each.namespace}/{each.name}"),
            (Column("LAST"), lambda each: age(each.at, now)),
            (Column("TIMES", drop=1), lambda each: each.count),
            (Column("WHY", wraps=True), lambda each: cut(each.message, _LONGEST_WHY)),
            keep=True,
        )
        page += [line(""), line(f"Pods that cannot be created{more}", BOLD), grid]
    if hint:
        text = "More of one of these pods, and what would help: kubectl gpu explain NAMESPACE/POD"
        page += [line(""), line(text, DIM)]
    return page


_SECTIONS = (
    ("Waiting", {Stage.WAITING}, "WHY"),
    ("Failing", {Stage.FAILING}, "WHY"),
    ("Bound, and not starting", {Stage.STARTING}, "WHY"),
    ("Refused by a node", {Stage.REFUSED}, "WHY, AT THAT TIME"),
    ("Failed", {Stage.FAILED}, "WHY"),
)


def _pods(
    title: str, pods: Sequence[PodReport], why: str, now: datetime, *, every: bool
) -> list[Grid | TextLine]:
    if not pods:
        return []
    if every:
        groups = [PodGroup((pod,)) for pod in sorted(pods, key=lambda pod: (pod.created, pod.name))]
    else:
        groups = group_pods(pods)
    past = pods[0].stage in (Stage.REFUSED, Stage.FAILED)
    if past:  # the newest first; of what waits, what has waited longest
        groups.sort(key=lambda each: each.pods[-1].created, reverse=True)
    shown = groups if every else groups[:_MOST_PODS]
    heading = f"{title}: {count_of(len(pods), 'pod')}"
    told = sum(len(group.pods) for group in shown)
    if len(shown) < len(pods):
        heading += f", {told} of them here" if told < len(pods) else ""
        heading += "; each by itself: --all"
    grid = table(
        shown,
        (Column("POD"), lambda group: group.name),
        (Column("AGE"), lambda group: age(group.pods[-1 if past else 0].created, now)),
        (Column("ASKS FOR", drop=1), lambda group: requests_of(group.pods[0].containers)),
        (Column(why, wraps=True), lambda group: cut(group.pods[0].why, _LONGEST_WHY)),
        keep=True,
    )
    return [line(""), line(heading, BOLD), grid]
