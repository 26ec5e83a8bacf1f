"""The cases of the peers' tests, read from ``data/*.toml``: a table a peer, a list a test.

The first word of a row is its question (:mod:`tests.peers.questions`): ``place``,
``admit``, ``wish``, ``hold``, ``phase`` or ``choose``. A node is a ``machine`` of which some cards
are ``taken``, or ``cards``: what is used of each, cores, blocks, and all its blocks.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import ge
from pathlib import Path
from typing import Any

from tests.peers import questions
from tests.peers.machines import MACHINES, plain
from tests.peers.questions import (
    ALLOWED,
    DENIED,
    FITS,
    REFUSED,
    Box,
    Choice,
    OurResult,
    Placing,
    used,
)

_FOLDER = Path(__file__).with_name("data")
_FILES = ("gpu_manager", "vgpu_manager", "hami", "device_plugin", "gpuallocator")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One case of a peer's test; *rule* is that by which the peer is known to differ."""

    peer: str
    test: str
    name: str
    question: questions.Question
    wants: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.peer}: {self.test}: {self.name}"


def read_cases() -> Iterator[Case]:
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


def _question(row: Row) -> questions.Question:
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
        return questions.whole(machine, busy=[int(card) for card in row.get("taken", "")])
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


_QUESTIONS: Mapping[str, Callable[[Row], questions.Question]] = {
    "place": _place,
    "admit": lambda row: questions.Admission(tuple(row["admit"].split()), node=row.get("node", "")),
    "wish": lambda row: questions.Wish(
        row["wish"], row.get("model", "GPU"), row.get("uuid", "GPU-0")
    ),
    "hold": lambda row: questions.Footprint(
        tuple(row["hold"].split()), tuple((int(card),) for card in row.get("on", ""))
    ),
    "phase": lambda row: questions.Counted(row["phase"]),
    "choose": _choose,
}


@dataclass(frozen=True)
class Rule:
    """A known difference, with the results to which it applies; if not better, it is on purpose."""

    text: str
    wants: str = ""
    ours: str = ""
    by_reason: bool = False
    better: bool = False

    def applies(self, name: str, case: Case, result: OurResult) -> bool:
        named = name == case.rule
        if self.by_reason:
            named = bool(result.why) and all(name in each for each in result.why)
        return named and self.wants in ("", case.wants) and self.ours in ("", result.value)


SAME, BETTER = Rule("", better=True), Rule("by the peer's own measure", better=True)
_LINKS = Rule("Whole cards by their links")
RULES: Mapping[str, Rule] = {
    "share-without-memory": Rule("A share without memory", ALLOWED, DENIED, by_reason=True),
    "memory-without-cores": Rule("Memory without cores", ALLOWED, DENIED, by_reason=True),
    "not-whole-cards": Rule("Cores between whole cards", ALLOWED, DENIED, by_reason=True),
    "privileged": Rule("A privileged container", DENIED, ALLOWED, by_reason=True),
    "node-named": Rule("A pod that names its node", DENIED, ALLOWED),
    "init-keeps": Rule("Init containers keep what they take"),
    "whole-card-set": _LINKS,
    "wishes-contradict": Rule("refused at creation", "no", REFUSED, by_reason=True, better=True),
    "fixed-sets": Rule("any free cards make a set", REFUSED, FITS, better=True),
}


def explain(case: Case, result: OurResult) -> Rule | None:
    """Return what makes our result as good as the peer's; ``None`` where it is worse."""
    alike = case.wants.split(" or ")
    if result.value in alike:
        return SAME
    if isinstance(case.question, Choice) and {*result.value.split(",")} & {*case.wants.split(",")}:
        return SAME  # nodes of the same score, the expected one among them
    named = (rule for name, rule in RULES.items() if rule.applies(name, case, result))
    if (rule := next(named, None)) is not None:
        return rule
    if isinstance(case.question, Placing):
        return _rate(case.question.rate(result.value), case.question.rate(alike[0]))
    return None


def _rate(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Rule | None:
    """Compare two ratings, what counts most first; of links ours goes by the worst pair first."""
    if not ours or not theirs:
        return None
    if all(map(ge, ours, theirs)):
        return BETTER
    by_links = len(ours) == 3 and (ours[1], ours[0]) > (theirs[1], theirs[0])
    return _LINKS if by_links else None
