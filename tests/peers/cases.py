"""The cases of the peers' tests, read from ``data/*.toml``: a table a peer, a list a test.

The first word of a row is its question (:mod:`tests.peers.questions`): ``place``,
``admit``, ``wish``, ``hold``, ``phase`` or ``choose``. A node is a ``machine`` of which some cards
are ``taken``, or ``cards``: what is used of each, cores, blocks, and all its blocks.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.machines import MACHINES, plain
from tests.peers.questions import (
    Admission,
    Box,
    Choice,
    Counted,
    Footprint,
    Placing,
    Question,
    Wish,
    used,
    whole,
)

_FOLDER = Path(__file__).with_name("data")
_FILES = ("gpu_manager", "vgpu_manager", "hami", "device_plugin", "gpuallocator")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One case of a peer's test.

    Attributes:
        wants: the result that the peer's test expects; several that it accepts, with ``or``.
        rule: by which the peer is known to differ; a key of :data:`tests.peers.verdicts.RULES`.
    """

    peer: str
    test: str
    name: str
    question: Question
    wants: str
    rule: str = ""

    def __str__(self) -> str:
        """Return the name of its test."""
        return f"{self.peer}: {self.test}: {self.name}"


def read_cases() -> Iterator[Case]:
    """Yield the cases of all peers."""
    for file in _FILES:
        document = tomllib.loads((_FOLDER / f"{file}.toml").read_text(encoding="utf-8"))
        for peer, tests in document.items():
            for test, rows in tests.items():
                for row in rows:
                    fields = {
                        key: each for key, each in row.items() if key not in ("wants", "rule")
                    }
                    name = row.get("name") or ", ".join(f"{k} {each}" for k, each in fields.items())
                    yield Case(peer, test, name, _question(row), row["wants"], row.get("rule", ""))


def _question(row: Row) -> Question:
    return next(make(row) for word, make in _QUESTIONS.items() if word in row)


def _place(row: Row) -> Placing:
    chosen = enumerate(row["chosen"].split(" | ") if "chosen" in row else ())
    return Placing(
        _box(row),
        tuple(row["place"].split()),
        row.get("wishes", {}),
        row.get("policy", "binpack"),
        tuple(map(int, row.get("must", ""))),
        {f"c{number}": tuple(map(int, each.split(","))) for number, each in chosen},
    )


def _choose(row: Row) -> Choice:
    inventories = {int(number): text for number, text in row.get("inventories", {}).items()}
    boxes = tuple(used(*_cards(each)) for each in row["among"])
    return Choice(boxes, tuple(row["choose"].split()), row.get("wishes", {}), inventories)


def _box(row: Row) -> Box:
    if "cards" not in row:
        name = row["machine"]
        machine = MACHINES.get(name) or plain(int(name.removesuffix(" cards")))
        return whole(machine, busy=[int(card) for card in row.get("taken", "")])
    return used(
        *_cards(row["cards"]),
        machine=MACHINES[row["machine"]] if "machine" in row else None,
        models=tuple(row.get("models", ())),
        uuids=tuple(row.get("uuids", ())),
        unhealthy=frozenset(row.get("unhealthy", ())),
    )


def _cards(text: str) -> Iterator[tuple[int, int, int]]:
    for card in text.split():
        cores, taken, blocks = map(int, card.split(","))
        yield cores, taken, blocks


_QUESTIONS: Mapping[str, Callable[[Row], Question]] = {
    "place": _place,
    "admit": lambda row: Admission(tuple(row["admit"].split()), node=row.get("node", "")),
    "wish": lambda row: Wish(row["wish"], row.get("model", "GPU"), row.get("uuid", "GPU-0")),
    "hold": lambda row: Footprint(
        tuple(row["hold"].split()), tuple((int(card),) for card in row.get("on", ""))
    ),
    "phase": lambda row: Counted(row["phase"]),
    "choose": _choose,
}
