"""docs/kubelet-facts.md names what exists."""

import re
from collections.abc import Sequence
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


def _read(section: str) -> tuple[Sequence[str], Sequence[str]]:
    (code,) = re.findall(r"^- Simulated by: (`.*`|nothing)$", section, flags=re.MULTILINE)
    (tests,) = re.findall(r"^- Tests: (.*)$", section, flags=re.MULTILINE)
    return _quoted(code), _quoted(tests)


SECTIONS = re.split(r"^## (?=K\d)", PAGE, flags=re.MULTILINE)[1:]
FACTS = {section.split()[0]: _read(section) for section in SECTIONS}
"""The code and the tests of each fact."""


@cache
def _functions(path: Path) -> Sequence[str]:
    """Return the test functions of a module, which is not imported."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(r"^def (test_\w+)\(", text, flags=re.MULTILINE)


def _found(named: str) -> set[tuple[Path, str]]:
    file, _, pattern = named.partition("::")
    path = Path(file) if "/" in file else TESTS / file
    return {(path, each) for each in _functions(path) if fnmatchcase(each, pattern)}


def test_every_fact_has_one_section() -> None:
    assert list(FACTS) == [f"K{number}" for number in range(1, 36)]


@pytest.mark.parametrize("fact", FACTS)
def test_code_and_tests_of_every_fact_exist(fact: str) -> None:
    code, tests = FACTS[fact]
    for each in code:
        assert resolve_name(f"simulator.{each}") is not None
    assert tests
    for each in tests:
        assert _found(each), each


def test_every_test_that_is_named_after_a_fact_is_in_its_section() -> None:
    path = TESTS / "test_kubelet_facts.py"
    named = [each for each in _functions(path) if re.match(r"test_k\d+_", each)]
    assert len(named) > 10
    for name in named:
        _, tests = FACTS[name.split("_")[1].upper()]
        assert (path, name) in set().union(*map(_found, tests)), name
