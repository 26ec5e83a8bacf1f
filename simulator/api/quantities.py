"""Quantities as the API server writes them back.

The real server decodes a quantity and encodes it again before anybody else sees the
object: ``1000`` becomes ``"1k"``, ``1.5`` becomes ``"1500m"``, the number ``50`` the
string ``"50"``. Webhooks and agents meet only the canonical form.
"""

from fractions import Fraction
from math import ceil

from contract.quantity import parse_quantity

# The wording of apimachinery's resource.ErrFormatWrong, with its regular expression.
NOT_A_QUANTITY = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)

_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO = 10**9


class InvalidQuantity(ValueError):
    """A value is not a quantity."""


def canonical(value: object) -> str:
    """Write *value* in canonical form.

    Raises:
        InvalidQuantity: it is no quantity.
    """
    if value is None:  # JSON null decodes to the zero quantity
        return "0"
    number = parse_quantity(value)
    if number is None:
        raise InvalidQuantity(NOT_A_QUANTITY)
    nano = ceil(abs(Fraction(number)) * _NANO) * (1 if number >= 0 else -1)  # finer is rounded up
    text = value if isinstance(value, str) else ""
    if text.endswith("i") and abs(nano) >= 1024 * _NANO and nano % _NANO == 0:
        return _with_binary_suffix(nano // _NANO)
    exponent_form = any(mark in text[:-1] for mark in "eE")
    return _with_decimal_suffix(nano, exponent_form=exponent_form)


def _with_binary_suffix(number: int) -> str:
    power = 0
    while power + 1 < len(_BINARY) and number % 1024 == 0:
        number, power = number // 1024, power + 1
    return f"{number}{_BINARY[power]}"


def _with_decimal_suffix(nano: int, *, exponent_form: bool) -> str:
    if nano == 0:
        return "0"
    power = -9
    while power < max(_DECIMAL) and nano % 1000 == 0:
        nano, power = nano // 1000, power + 3
    suffix = _DECIMAL[power] if not exponent_form else f"e{power}" if power else ""
    return f"{nano}{suffix}"
