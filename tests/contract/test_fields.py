"""The reader of fields, for all that read documents by it, and values in messages."""

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidRecord, quote
from contract.fields import Fields


def _fields(**values: object) -> Fields:
    return Fields("spec", values, InvalidRecord)


def test_an_absent_or_null_field_is_empty() -> None:
    fields = _fields(name=None)
    assert (fields.text("name"), fields.flag("name"), fields.items("none")) == ("", False, [])
    assert fields.mapping("name") is None
    assert fields.child("name").values == {}


def test_an_object_inside_has_the_path_of_both() -> None:
    assert _fields(a={"b": {}}).child("a").child("b").at("c") == "spec.a.b.c"
    assert Fields("", {}, InvalidRecord).at("c") == "c"


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("text", 1, "Invalid value: 1: must be text"),
        ("some_text", None, "Invalid value: null: must be text"),
        ("some_text", "\ud800", r'Invalid value: "\ud800": must be text'),
        ("flag", "no", 'Invalid value: "no": must be true or false'),
        ("whole", -1, "Invalid value: -1: must be a whole number, 0 or more"),
        ("whole", True, "Invalid value: true: must be a whole number, 0 or more"),
        ("whole", "1", 'Invalid value: "1": must be a whole number, 0 or more'),
        ("whole", 2**63, f"must be at most {2**63 - 1}"),
        ("items", {}, "Invalid value: a mapping: must be a list"),
        ("child", [], "Invalid value: a list: must be a mapping"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_path(
    method: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidRecord) as caught:
        getattr(_fields(x=value), method)("x")
    assert str(caught.value) == f"spec.x: {message}"


UUID = "GPU-5f3c1a2e-276c-c9cb-b366-c6fa655957c5"


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (None, "null"),
        (True, "true"),
        ("150", '"150"'),
        ('a"b\n', '"a\\"b\\n"'),
        ("x" * 80, json.dumps("x" * 80)),
        (f"{UUID};{UUID}", json.dumps(UUID) + "..." + json.dumps(UUID)),
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
    assert len(quote(value)) <= 80 * 12 + 7  # a pair of escapes for each astral character
