"""The programs use the words of the glossary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    *("agent", "bench", "certs", "common", "contract", "placement", "scheduler"),
    *("simulator", "view", "webhook"),
]
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
