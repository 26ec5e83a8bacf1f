"""docs/kubelet-facts.md names what exists."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
TESTS = Path("tests/simulator")
PAGE = (ROOT / "docs/kubelet-facts.md").read_text(encoding="utf-8")


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@dataclass(frozen=True)
class Fact:
    """One section of the facts."""

    name: str
    code: Sequence[str]
    tests: Sequence[str]


def _facts() -> list[Fact]:
    sections = re.split(r"^## (?=K\d)", PAGE, flags=re.MULTILINE)[1:]
    found = []
    for section in sections:
        (code,) = re.findall(r"^- Simulated by: (`.*`|nothing)$", section, flags=re.MULTILINE)
        (tests,) = re.findall(r"^- Tests: (.*)$", section, flags=re.MULTILINE)
        found.append(Fact(section.split()[0], _quoted(code), _quoted(tests)))
    return found


FACTS = _facts()


@cache
def _functions(path: Path) -> frozenset[str]:
    """The test functions of a module, read and not imported."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    )


def _found(named: str) -> set[tuple[Path, str]]:
    """The tests that an entry names."""
    file, _, pattern = named.partition("::")
    path = Path(file) if "/" in file else TESTS / file
    return {(path, each) for each in _functions(path) if fnmatchcase(each, pattern)}


def test_every_fact_has_one_section() -> None:
    assert [each.name for each in FACTS] == [f"K{number}" for number in range(1, 36)]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_the_code_of_every_fact_exists(fact: Fact) -> None:
    for each in fact.code:
        assert resolve_name(f"simulator.{each}") is not None


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_the_tests_of_every_fact_exist(fact: Fact) -> None:
    assert fact.tests
    for each in fact.tests:
        assert _found(each), each


def test_every_test_that_is_named_after_a_fact_is_in_its_section() -> None:
    by_name: Mapping[str, Fact] = {each.name: each for each in FACTS}
    path = TESTS / "test_kubelet_facts.py"
    named = [each for each in sorted(_functions(path)) if re.match(r"test_k\d+_", each)]
    assert len(named) > 10
    for name in named:
        fact = by_name[name.split("_")[1].upper()]
        assert (path, name) in set().union(*map(_found, fact.tests)), name
