"""How our result of a case compares with what the peer's test expects. Pure.

Equal results are the same, and so are ties. Sets of cards are rated by the peer's own measure.
Others are better or different on purpose only by a rule of the table here, and only if our result
is the one that the rule describes; everything else is worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import ge

from tests.peers.cases import Case
from tests.peers.questions import ALLOWED, DENIED, FITS, REFUSED, Choice, OurResult, Placing


@dataclass(frozen=True)
class Rule:
    """A difference that is known. It applies to the cases that name it, or by our code's reasons.

    Attributes:
        text: the difference; of one on purpose the name of its row in docs/migrate.md.
        wants: the peer's result to which it applies; empty for any.
        ours: our result to which it applies; empty for any.
        by_reason: whether all reasons of our result, or its warnings, must be the rule's.
        better: it is no difference on purpose: ours is better.
    """

    text: str
    wants: str = ""
    ours: str = ""
    by_reason: bool = False
    better: bool = False

    def applies(self, name: str, case: Case, result: OurResult) -> bool:
        """Return whether the rule, by its name, explains our result."""
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
    """Compare two ratings, what counts most first; ``None`` where ours is worse.

    Of whole cards these are the sum of the links, the worst pair, and the sum with what stays
    free. The sum is NVIDIA's measure; ours goes by the worst pair before it.
    """
    if not ours or not theirs:
        return None
    if all(map(ge, ours, theirs)):
        return BETTER
    by_links = len(ours) == 3 and (ours[1], ours[0]) > (theirs[1], theirs[0])
    return _LINKS if by_links else None
