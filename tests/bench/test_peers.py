"""The cases of the peers' tests: all are run, and judged by what is expected and by named rules."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from bench.peers.cases import read_cases
from bench.peers.machines import MACHINES, choose_as_nvidia
from bench.peers.questions import ALLOWED, DENIED, REFUSED, Admission, Choice, Placing, used, whole
from bench.peers.run import run
from bench.peers.verdicts import RULES, Case, Found, Kind, judge
from bench.result import Result

PEERS = {
    *("gpu-manager", "gpu-admission", "vgpu-manager", "HAMi"),
    *("k8s-device-plugin", "go-gpuallocator"),
}
VOLTA = MACHINES["DGX-1 Volta"]
PCIE, RTX8000 = MACHINES["8 cards, PCIe"], MACHINES["4 x RTX8000"]
MIGRATE = Path(__file__).parents[2] / "docs" / "migrate.md"


@cache
def result() -> Result:
    return run()


@cache
def found() -> tuple[Found, ...]:
    return tuple(map(judge, read_cases()))


def case(question: Placing | Admission | Choice, wants: str, rule: str = "") -> Found:
    return judge(Case("peer", "test", "name", question, wants, rule))


def test_every_case_of_every_peer_is_in_one_column() -> None:
    by_peer, worse, *_ = result().tables
    *rows, total = by_peer.rows
    assert {row[0] for row in rows} == PEERS
    for row in by_peer.rows:
        _, cases, *kinds = row
        assert cases == sum(map(int, kinds))
    assert total[1] == 606
    named = [note for note in worse.notes if note.startswith("  ")]
    assert len(named) == total[-1] == len(result().figures["worse"])
    assert worse.rows == []


def test_no_two_cases_of_a_peer_have_one_name() -> None:
    names = Counter((each.peer, each.test, each.name) for each in read_cases())
    assert [name for name, count in names.items() if count > 1] == []


def test_no_case_is_worse() -> None:
    assert [(each.case, each.answer) for each in found() if each.kind is Kind.WORSE] == []


def test_what_is_different_on_purpose_is_a_row_of_the_page() -> None:
    _, _, section = MIGRATE.read_text(encoding="utf-8").partition("\n## Different on purpose\n")
    rows = re.findall(r"^\| ([A-Z][^|]*) \|", section, flags=re.MULTILINE)
    rules = {rule.text for rule in RULES.values() if rule.kind is Kind.PURPOSE}
    assert rules == set(rows)
    assert {each.cause for each in found() if each.kind is Kind.PURPOSE} <= rules


@pytest.mark.parametrize(
    ("question", "wants", "rule", "kind"),
    [
        (Placing(whole(RTX8000), ("200/",)), "0,3 or 1,2", "", Kind.SAME),
        (Placing(whole(RTX8000), ("100/",)), "3", "", Kind.TIE),
        (Placing(whole(RTX8000), ("200/",)), "0,1", "", Kind.BETTER),
        (Placing(whole(RTX8000), ("400/",)), REFUSED, "", Kind.WORSE),
        (Placing(used((0, 0, 9), (40, 4, 9)), ("10/1",)), "0", "", Kind.BETTER),
        (Placing(used((0, 0, 9), (40, 4, 9)), ("10/1",), policy="spread"), "1", "", Kind.BETTER),
        (Choice((used((0, 0, 9)), used((0, 0, 9))), ("10/1",)), "1", "", Kind.TIE),
        (Choice((used((0, 0, 9)), used((90, 1, 9))), ("10/1",)), "0", "", Kind.WORSE),
        (Admission(("150/",)), DENIED, "", Kind.SAME),
        (Admission(("150/",)), ALLOWED, "", Kind.PURPOSE),
        (Admission(("150/", "50/1.5")), ALLOWED, "", Kind.WORSE),
        (Admission(("100/",)), DENIED, "", Kind.WORSE),
        (Admission(("100/",)), DENIED, "node-named", Kind.PURPOSE),
        (Admission(("150/",)), ALLOWED, "node-named", Kind.PURPOSE),
    ],
)
def test_a_kind_follows_from_the_answers(
    question: Placing | Admission | Choice, wants: str, rule: str, kind: Kind
) -> None:
    assert case(question, wants, rule).kind is kind


def test_nvidias_policy_divides_all_free_cards() -> None:
    assert choose_as_nvidia(VOLTA, (0, 2, 4, 5), 2) == (4, 5)
    assert choose_as_nvidia(VOLTA, (0, 1, 4), 2) == (0, 4)
    assert choose_as_nvidia(VOLTA, tuple(range(8)), 4, frozenset({4})) == (4, 5, 6, 7)
    assert choose_as_nvidia(PCIE, (0, 2, 3, 4, 6, 7), 4) == (0, 2, 3, 4)
    assert choose_as_nvidia(RTX8000, (1, 2), 3) == ()
