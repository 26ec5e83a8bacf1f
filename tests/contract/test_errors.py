import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import quote


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (None, "null"),
        (True, "true"),
        ("150", '"150"'),
        ('a"b\n', '"a\\"b\\n"'),
        ("x" * 64, json.dumps("x" * 64)),
        ("x" * 65, json.dumps("x" * 64) + "..."),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
        (date(2026, 10, 5), '"2026-10-05"'),
        (b"ab", "\"b'ab'\""),
        (1 << 255, str(1 << 255)),
        (1 << 256, "a number of 257 bits"),
        pytest.param(10**10_000, "a number of 33220 bits", id="huge"),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_a_value_is_quoted_on_one_bounded_line(value: object, quoted: str) -> None:
    assert quote(value) == quoted


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text())
def test_a_quote_never_breaks_the_line_nor_floods_it(value: object) -> None:
    assert quote(value).isprintable()
    assert len(quote(value)) <= 64 * 12 + 5  # a pair of escapes for each astral character
