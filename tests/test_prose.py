"""Docstrings use the verbs of the field, and the programs the words of the glossary."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    *("agent", "bench", "certs", "common", "contract", "placement", "scheduler"),
    *("simulator", "view", "webhook"),
]
VAGUE = {"Give", "Tell", "Say", "Have", "Note", "Name"}
"""They say that something happens, not what: "Return", "Report", "Record", "List" do."""


def functions(package: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
                    (ast.get_docstring(node) or ""),
                )


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_with_a_verb_that_says_nothing(package: str) -> None:
    documented = [(where, text.split()[0]) for where, text in functions(package) if text]
    assert documented
    assert [where for where, first in documented if first in VAGUE] == []


GONE = {
    r"book(s|ed|ings?)?": "assign, hold; device IDs are in the device table",
    r"promis(e|ed|es)": "reserve, reservation",
    r"desk": "session",
}
"""What the glossary (docs/architecture.md) has another word for."""


@pytest.mark.parametrize("word", GONE)
def test_the_programs_use_the_words_of_the_glossary(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", line, re.IGNORECASE)
    ]
    assert found == [], GONE[word]
