"""``kubectl gpu``: nodes and their cards, and below them what waits or was refused. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from view.model.reports import CardReport, ClusterReport, NodeReport, PodReport, Stage
from view.model.words import units
from view.terminal.layout import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    Cell,
    Column,
    Grid,
    Line,
    Page,
    Row,
    bar,
    cell,
    level,
    line,
)
from view.terminal.words import (
    age,
    amount,
    ask_of,
    by_name,
    cut,
    gaps_in_words,
    holder_of,
    short_model,
)

MOST_WITH_CARDS = 40
"""Of more nodes than these, cards are shown only where nodes are named."""

UNSETTLED = frozenset({Stage.WAITING, Stage.REFUSED, Stage.STARTING})
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
    names: Sequence[str] = (),
    wide: bool = False,
    cards: bool | None = None,
) -> Page:
    """Lay the cluster out.

    Args:
        report: the cluster.
        now: for ages.
        names: only these nodes, and no pods below; all where it is empty.
        wide: with UUIDs, memory in GiB, NUMA nodes, evidence, all holders and links.
        cards: whether each card has a row; ``None`` for as long as there are not too many nodes.
    """
    nodes = [each for each in report.nodes if not names or each.name in names]
    if cards is None:
        cards = bool(names) or wide or len(nodes) <= MOST_WITH_CARDS
    rows: list[Row] = []
    for node in nodes:
        rows.append(_node_row(node, wide=wide))
        for card in node.cards if cards else ():
            mark = "\u2514" if card is node.cards[-1] else "\u251c"
            rows.append(_card_row(card, mark=mark, wide=wide))
    page: list[Grid | Line] = []
    if rows:
        page += [Grid(_COLUMNS, tuple(rows)), line(units(node.memory_block for node in nodes), DIM)]
        if not cards:
            page.append(line("Cards of a node: kubectl gpu nodes NAME", DIM))
    elif not any(gap.what == "nodes" for gap in report.gaps):
        page.append(line("No node has GPUs: no agent has written an inventory of cards."))
    if wide:
        page += _links(nodes)
    if not names:
        page += _below(report, now)
    return [*page, *gaps_in_words(report.gaps)]


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
        parts.append(f"{node.whole_cards} whole card{'s' * (node.whole_cards > 1)}")
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


def _card_row(card: CardReport, *, mark: str, wide: bool, most: int | None = _MOST_HOLDERS) -> Row:
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
        cell("ok", GOOD) if not card.unhealthy else cell("ill", BAD),
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
    return (
        cell(f"{cores_held}/{cores}"),
        cell(bar(cores_held, cores), level(cores_held, cores)),
        cell(f"{blocks_held}/{blocks}"),
        cell(bar(blocks_held, blocks), level(blocks_held, blocks)),
    )


def _links(nodes: Sequence[NodeReport]) -> list[Line]:
    lines = []
    for node in nodes:
        kinds = {link.cards: link.kind for link in node.links}  # of two ways NVLink comes last
        pairs = [f"{one}-{other} {kind}" for (one, other), kind in kinds.items()]
        if pairs:
            lines.append(line(f"{node.name}: links {', '.join(pairs)}", DIM))
    return lines


# --- what waits or was refused -----------------------------------------------------------


def _below(report: ClusterReport, now: datetime) -> list[Grid | Line]:
    waiting = [pod for pod in report.pods if pod.stage is Stage.WAITING]
    refused = [pod for pod in report.pods if pod.stage is Stage.REFUSED]
    stuck = [pod for pod in report.pods if pod.stage is Stage.STARTING and pod.why]
    page = [
        *_pods("Waiting", sorted(waiting, key=lambda pod: pod.created), "WHY", now),
        *_pods("Bound, and not starting", stuck, "WHY", now),
        *_pods(
            "Refused by a node",
            sorted(refused, key=lambda pod: pod.created, reverse=True),
            "WHY, AT THAT TIME",
            now,
        ),
    ]
    if report.denied:
        rows = tuple(
            (
                cell(f"{each.kind} {each.namespace}/{each.name}"),
                cell(cut(each.message, _LONGEST_WHY)),
            )
            for each in report.denied[:_MOST_PODS]
        )
        page += [line(""), line("Pods that cannot be created", BOLD)]
        page.append(Grid((Column("WORKLOAD"), Column("WHY", wraps=True)), rows))
    if waiting or refused:
        hint = "kubectl gpu explain POD -n NAMESPACE"
        page += [line(""), line(f"More of one of these pods, and what would help: {hint}", DIM)]
    return page


def _pods(title: str, pods: Sequence[PodReport], why: str, now: datetime) -> list[Grid | Line]:
    if not pods:
        return []
    rows = tuple(
        (
            cell(by_name(pod)),
            cell(age(pod.created, now)),
            cell(ask_of(pod.containers)),
            cell(cut(pod.why, _LONGEST_WHY)),
        )
        for pod in pods[:_MOST_PODS]
    )
    heading = f"{title}: {len(pods)} pod{'s' * (len(pods) > 1)}"
    if len(pods) > len(rows):
        heading += f", {len(rows)} of them"
    columns = (
        Column("POD"),
        Column("AGE", drop=2),
        Column("ASKS FOR", drop=1),
        Column(why, wraps=True),
    )
    return [line(""), line(heading, BOLD), Grid(columns, rows)]
