"""Kubernetes quantities, against decimal arithmetic as an independent oracle."""

from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.quantity import as_written, parse_quantity

_FACTORS = {
    "": Decimal(1),
    **{each: Decimal(1000) ** power for power, each in enumerate("num", -3) if power},
    **{each: Decimal(1000) ** power for power, each in enumerate("kMGTPE", 1)},
    **{f"{each}i": Decimal(1024) ** power for power, each in enumerate("KMGTPE", 1)},
}
_EXACT = Context(prec=400)

_digits = st.text("0123456789", min_size=1, max_size=20)
_numbers = st.one_of(
    _digits,
    st.builds("{}.{}".format, _digits, _digits),
    st.builds("{}.".format, _digits),
    st.builds(".{}".format, _digits),
)
_signs = st.sampled_from(["", "+", "-"])


_AS_THEY_ARE = (3000, "3000", "0", "16G", "16Gi", "1500m", "3Ki", "0.5k", "1000k", "k", None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e16, 10**16),
        ("1E", 10**18),
        ("1e-99", Fraction(1, 10**99)),
        ("1" * 64, int("1" * 64)),
        pytest.param(10**10_000, 10**10_000, id="huge"),
    ],
)
def test_a_quantity_is_read_exactly(value: object, expected: int | Fraction) -> None:
    assert parse_quantity(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, ["1"], {"value": 1}),
        *(float("inf"), float("-inf"), float("nan")),
        *("", " ", "1 ", " 1", "1\n", "1" * 65),
        *("half", "1,5", "1_000", "0x10", "--1", "+-1", ".", "+", "k"),
        *("1K", "1ki", "1kk", "1KiB", "1ei", "1e", "1e1.5", "1e3k"),
        *("1e100", "1e-100", "1e999999999999"),
        "\u0661",  # ARABIC-INDIC DIGIT ONE: a digit to str.isdigit, not to Kubernetes
        "\u00b2",  # SUPERSCRIPT TWO
    ],
)
def test_an_invalid_quantity_is_none(value: object) -> None:
    assert parse_quantity(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [("3k", "3000"), ("150k", "150000"), *((each, each) for each in _AS_THEY_ARE)],
)
def test_a_count_is_shown_as_its_author_wrote_it(value: object, expected: object) -> None:
    assert as_written(value) == expected


@given(_signs, _numbers, st.sampled_from(sorted(_FACTORS)))
def test_a_quantity_with_a_suffix_equals_decimal_arithmetic(
    sign: str, number: str, suffix: str
) -> None:
    expected = _EXACT.multiply(Decimal(sign + number), _FACTORS[suffix])
    assert parse_quantity(sign + number + suffix) == Fraction(expected)


@given(_signs, _numbers, st.sampled_from("eE"), st.integers(-99, 99))
def test_a_quantity_with_an_exponent_equals_decimal_arithmetic(
    sign: str, number: str, letter: str, exponent: int
) -> None:
    text = f"{sign}{number}{letter}{exponent}"
    assert parse_quantity(text) == Fraction(Decimal(text))


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_json_number_is_read_as_it_was_written(value: float) -> None:
    expected = Fraction(Decimal(repr(value)))
    small = "e" not in repr(value) or abs(int(repr(value).rpartition("e")[2])) <= 99
    assert parse_quantity(value) == (expected if small else None)
