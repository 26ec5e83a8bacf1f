"""Cards and their links as text: a table, and a matrix as ``nvidia-smi topo -m`` shows it. Pure."""

from collections.abc import Sequence

from agent.cards.inventory import Discovery
from contract.inventory import Card, Inventory

UNKNOWN = "?"
"""Shown if the link of two cards is not known."""

NONE = "-"
"""Shown for a MIG instance, which has no links."""

_LEGEND = (
    ("X", "the card itself"),
    ("NV#", "# NVLinks, straight or through NVSwitches"),
    ("PIX", "at most one PCIe bridge"),
    ("PXB", "several PCIe bridges, no host bridge"),
    ("PHB", "a PCIe host bridge"),
    ("NODE", "several host bridges of one NUMA node"),
    ("SYS", "the link between sockets"),
    (NONE, "none, of a MIG instance"),
    (UNKNOWN, "not known"),
)


def describe(found: Discovery) -> str:
    """Write a discovery: cards, cards left out, links, a legend."""
    parts = [card_table(found.inventory)]
    if found.driver:
        parts.insert(0, f"driver {found.driver}\n")
    if left_out := found.left_out():
        parts.append(
            "".join(
                f"GPU{each.index} ({each.uuid or 'no UUID'}) is left out: {each.reason}\n"
                for each in left_out
            )
        )
    if found.inventory.cards:
        parts.append(link_matrix(found.inventory))
        parts.append(_legend(found.inventory))
    return "\n".join(parts)


def card_table(inventory: Inventory) -> str:
    """Write one line for each card."""
    head = ["", "uuid", "model", "memory", "bus id", "NUMA", "device"]
    return _table([head, *(_row(card) for card in inventory.cards)])


def link_matrix(inventory: Inventory) -> str:
    """Write the link of every pair of cards, and each card's NUMA node."""
    kinds = {link.cards: link.kind for link in inventory.links}

    def cell(row: Card, column: Card) -> str:
        if row.index == column.index:
            return "X"
        if row.is_instance or column.is_instance:
            return NONE
        pair = (min(row.index, column.index), max(row.index, column.index))
        return kinds.get(pair, UNKNOWN)

    cards = inventory.cards
    head = ["", *(_name(card) for card in cards), "NUMA"]
    return _table(
        [
            head,
            *([_name(row), *(cell(row, column) for column in cards), _numa(row)] for row in cards),
        ]
    )


def _legend(inventory: Inventory) -> str:
    """Explain the words that the matrix uses."""
    shown = {link.cards: link.kind for link in inventory.links}.values()
    used = {"NV#" if kind.startswith("NV") else kind for kind in shown}
    used |= {"X"} | ({UNKNOWN} if inventory.unlinked() else set())
    used |= {NONE} if any(card.is_instance for card in inventory.cards) else set()
    return _table([[f"  {word}", f"= {text}"] for word, text in _LEGEND if word in used])


def _row(card: Card) -> list[str]:
    return [
        _name(card),
        card.uuid,
        card.model,
        f"{card.memory // (1 << 20)} MiB",
        card.bus_id or UNKNOWN,
        _numa(card),
        " ".join(card.device_nodes),
    ]


def _name(card: Card) -> str:
    return f"GPU{card.index}"


def _numa(card: Card) -> str:
    return UNKNOWN if card.numa is None else str(card.numa)


def _table(rows: Sequence[Sequence[str]]) -> str:
    # A cards file may contain characters that would move a terminal's cursor.
    rows = [
        ["".join(c if c.isprintable() else UNKNOWN for c in cell) for cell in row] for row in rows
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )
