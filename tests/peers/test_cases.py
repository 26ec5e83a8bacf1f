"""The cases of other projects' own tests in ``data/``, for our code."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from tests.peers.cases import BETTER, RULES, SAME, Case, Rule, explain, read_cases
from tests.peers.machines import MACHINES, choose_as_nvidia
from tests.peers.questions import (
    ALLOWED,
    DENIED,
    REFUSED,
    Admission,
    Choice,
    Placing,
    choose_whole,
    used,
    whole,
)

CASES = list(read_cases())
MIGRATE = Path(__file__).parents[2] / "docs" / "migrate.md"
RTX8000 = MACHINES["4 x RTX8000"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_ends_as_the_peers_test_expects_or_better(case: Case) -> None:
    result = case.question.evaluate(case.wants)
    assert explain(case, result), f"{result.value}, not {case.wants}: {result.why}"


def test_every_intended_difference_is_a_row_of_the_page() -> None:
    _, _, section = MIGRATE.read_text(encoding="utf-8").partition("\n## Different on purpose\n")
    rows = re.findall(r"^\| ([A-Z][^|]*) \|", section, flags=re.MULTILINE)
    assert {rule.text for rule in RULES.values() if not rule.better} == set(rows)
    found = [explain(case, case.question.evaluate(case.wants)) for case in CASES]
    on_purpose = [rule for rule in found if rule is not None and not rule.better]
    assert (len(found), len(on_purpose)) == (606, 24)  # as docs/benchmarks.md has it


@pytest.mark.parametrize(
    ("question", "wants", "name", "rule"),
    [
        (Placing(whole(RTX8000), ("200/",)), "0,3 or 1,2", "", SAME),
        (Placing(whole(RTX8000), ("200/",)), "0,1", "", BETTER),
        (Placing(whole(RTX8000), ("400/",)), REFUSED, "", None),
        (Placing(used((0, 0, 9), (40, 4, 9)), ("10/1",)), "0", "", BETTER),
        (Placing(used((0, 0, 9), (40, 4, 9)), ("10/1",), policy="spread"), "1", "", BETTER),
        (Choice((used((0, 0, 9)), used((0, 0, 9))), ("10/1",)), "1", "", SAME),
        (Choice((used((0, 0, 9)), used((90, 1, 9))), ("10/1",)), "0", "", None),
        (Admission(("150/",)), ALLOWED, "", RULES["not-whole-cards"]),
        (Admission(("150/", "50/1.5")), ALLOWED, "", None),
        (Admission(("100/",)), DENIED, "", None),
        (Admission(("100/",)), DENIED, "node-named", RULES["node-named"]),
    ],
)
def test_a_difference_that_nothing_explains_counts_as_worse(
    question: Placing | Admission | Choice, wants: str, name: str, rule: Rule | None
) -> None:
    case = Case("peer", "test", "name", question, wants, name)
    assert explain(case, question.evaluate(wants)) is rule


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DGX-1 Pascal", (629, 0, 20)),
        ("DGX-1 Volta", (629, 0, 42)),
        ("8 cards, PCIe", (629, 0, 0)),
        ("NVLink bridges", (629, 0, 32)),
        ("cube mesh", (629, 16, 9)),
        ("4 x RTX8000", (17, 0, 0)),
        ("6 cards, PCIe", (121, 0, 0)),
        ("NVSwitch", (629, 0, 0)),
    ],
)
def test_links_are_compared_with_nvidias_choice_over_every_set_of_free_cards(
    name: str, expected: tuple[int, int, int]
) -> None:
    """What docs/benchmarks.md says of the machine: requests, below NVIDIA's sum, above it."""
    machine = MACHINES[name]
    requests = [
        (free, size)
        for count in range(2, machine.count + 1)
        for free in combinations(range(machine.count), count)
        for size in (2, 3, 4)
        if size <= count
    ]
    differences = [
        machine.score(choose_whole(machine, *each))
        - machine.score(choose_as_nvidia(machine, *each))
        for each in requests
    ]
    below, above = sum(each < 0 for each in differences), sum(each > 0 for each in differences)
    assert (len(requests), below, above) == expected


def _in_a_row(choose: Callable[..., tuple[int, ...]]) -> int:
    """Return the sum of the pairs that one after the other takes, until no card is left."""
    machine = MACHINES["DGX-1 Pascal"]
    free, total = set(range(machine.count)), 0
    while free:
        chosen = choose(machine, tuple(sorted(free)), 2)
        total += machine.score(chosen)
        free -= {*chosen}
    return total


def test_pairs_in_a_row_leave_good_pairs_for_the_next() -> None:
    assert _in_a_row(choose_whole) == _in_a_row(choose_as_nvidia) == 600
