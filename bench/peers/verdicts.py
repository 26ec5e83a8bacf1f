"""How our answer to a case compares with what the peer's test expects. Pure.

Equal answers are the same. Sets of cards are rated by the peer's own measure. What is left is
better or different on purpose only by a rule of the tables here, and only if our answer is the one
that the rule describes; everything else is worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import ge

from bench.peers.questions import ALLOWED, DENIED, FITS, REFUSED, Answer, Choice, Placing, Question


class Kind(StrEnum):
    """The kinds of results, in the order in which they are counted."""

    SAME = "the same"
    TIE = "another tie"
    BETTER = "better"
    PURPOSE = "different on purpose"
    WORSE = "worse"


@dataclass(frozen=True)
class Case:
    """One case of a peer's test.

    Attributes:
        wants: the answer that the peer's test expects; several that it accepts, with ``or``.
        rule: by which the peer is known to differ; a key of :data:`RULES`.
    """

    peer: str
    test: str
    name: str
    question: Question
    wants: str
    rule: str = ""


@dataclass(frozen=True)
class Found:
    """The result of a case: its kind, our answer, and the rule or the cause behind it."""

    case: Case
    kind: Kind
    answer: Answer
    cause: str = ""


@dataclass(frozen=True)
class Rule:
    """A difference that is known. It applies to the cases that name it, or by what our code says.

    Attributes:
        kind: better, or different on purpose.
        text: the difference; of one on purpose the name of its row in docs/migrate.md.
        wants: the peer's answer to which it applies; empty for any.
        ours: our answer to which it applies; empty for any.
        by_reason: whether all reasons of our answer, or its warnings, have to be the rule's.
    """

    kind: Kind
    text: str
    wants: str = ""
    ours: str = ""
    by_reason: bool = False


PAGE = "docs/migrate.md#different-on-purpose"

_LINKS = Rule(Kind.PURPOSE, "Whole cards by their links")
RULES: Mapping[str, Rule] = {
    "share-without-memory": Rule(
        Kind.PURPOSE, "A share without memory", ALLOWED, DENIED, by_reason=True
    ),
    "memory-without-cores": Rule(
        Kind.PURPOSE, "Memory without cores", ALLOWED, DENIED, by_reason=True
    ),
    "not-whole-cards": Rule(
        Kind.PURPOSE, "Cores between whole cards", ALLOWED, DENIED, by_reason=True
    ),
    "privileged": Rule(Kind.PURPOSE, "A privileged container", DENIED, ALLOWED, by_reason=True),
    "node-named": Rule(Kind.PURPOSE, "A pod that names its node", DENIED, ALLOWED),
    "init-keeps": Rule(Kind.PURPOSE, "Init containers keep what they take"),
    "whole-card-set": _LINKS,
    "wishes-contradict": Rule(
        Kind.BETTER,
        "wishes that leave no card are refused at creation",
        "no",
        REFUSED,
        by_reason=True,
    ),
    "fixed-sets": Rule(Kind.BETTER, "any free cards make a set, not only a list's", REFUSED, FITS),
}
BY_MEASURE = "by the peer's own measure"


def judge(case: Case) -> Found:
    """Ask our code and compare."""
    answer = case.question.answer(case.wants)
    alike = case.wants.split(" or ")
    if answer.value in alike:
        return Found(case, Kind.SAME, answer)
    if isinstance(case.question, Choice) and {*answer.value.split(",")} & {*case.wants.split(",")}:
        return Found(case, Kind.TIE, answer)
    rule = next((rule for name, rule in RULES.items() if _applies(name, rule, case, answer)), None)
    if rule is None and isinstance(case.question, Placing):
        rule = _rate(case.question.rate(answer.value), case.question.rate(alike[0]))
    if rule is None:
        rule = Rule(Kind.WORSE, "by no known rule")
    return Found(case, rule.kind, answer, rule.text)


def _applies(name: str, rule: Rule, case: Case, answer: Answer) -> bool:
    named = name == case.rule
    if rule.by_reason:
        named = bool(answer.why) and all(name in each for each in answer.why)
    return named and rule.wants in ("", case.wants) and rule.ours in ("", answer.value)


def _rate(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Rule | None:
    """Compare two ratings, what counts most first; ``None`` where ours is worse.

    Of whole cards these are the sum of the links, the worst pair, and the sum with what stays
    free. The sum is NVIDIA's measure; ours goes by the worst pair before it.
    """
    if not ours or not theirs:
        return None
    if ours == theirs:
        return Rule(Kind.TIE, "")
    if all(map(ge, ours, theirs)):
        return Rule(Kind.BETTER, BY_MEASURE)
    by_links = len(ours) == 3 and (ours[1], ours[0]) > (theirs[1], theirs[0])
    return _LINKS if by_links else None
