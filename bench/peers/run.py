"""The tables: results by peer, by cause with the cases named, and differences on purpose."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from bench.peers.cases import read_cases
from bench.peers.verdicts import PAGE, Case, Found, Kind, judge
from bench.result import Result, Table

NAME = "peers"


def run() -> Result:
    """Compare; there is no goal, for a peer may be wrong or its users other than ours."""
    found = [judge(case) for case in read_cases()]
    figures = {
        "worse": [
            {"case": _title(each.case), "cause": each.cause, "wants": each.case.wants,
             "ours": each.answer.value, "why": each.answer.why}
            for each in found
            if each.kind is Kind.WORSE
        ]
    }  # fmt: skip
    tables = (_by_peer(found), *(_by_cause(found, kind) for kind in (Kind.WORSE, Kind.PURPOSE)))
    return Result(NAME, (*tables, _by_cause(found, Kind.BETTER)), (), figures)


def _title(case: Case) -> str:
    return f"{case.peer}, {case.test}: {case.name}"


def _by_peer(found: Sequence[Found]) -> Table:
    peers = dict.fromkeys(each.case.peer for each in found)
    counts = Counter((each.case.peer, each.kind) for each in found)
    rows: list[tuple[str | int, ...]] = [
        (peer, sum(counts[peer, kind] for kind in Kind), *(counts[peer, kind] for kind in Kind))
        for peer in peers
    ]
    totals = Counter(each.kind for each in found)
    rows.append(("all", len(found), *(totals[kind] for kind in Kind)))
    return Table("cases of the peers' own tests", ("", "cases", *Kind), rows)


def _by_cause(found: Sequence[Found], kind: Kind) -> Table:
    """Return the cases of a kind by cause; those that are worse are named, one a line."""
    of_kind = [each for each in found if each.kind is kind]
    causes = Counter(each.cause for each in of_kind)
    rows = [(cause, count) for cause, count in causes.most_common()]
    notes: list[str] = []
    if kind is Kind.WORSE:
        by_cause = (
            [f"{cause}:", *(_line(each) for each in of_kind if each.cause == cause)]
            for cause in causes
        )
        notes = list(chain.from_iterable(by_cause))
    elif kind is Kind.PURPOSE:
        notes = [f"each is a row of {PAGE}"]
    return Table(f"{kind}, by cause", ("", "cases"), rows, notes)


def _line(found: Found) -> str:
    return f"  {_title(found.case)}: {found.answer.value}, not {found.case.wants}"
