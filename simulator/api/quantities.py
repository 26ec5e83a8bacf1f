"""The canonical form of quantities.

The real server decodes each quantity and encodes it again: ``1000`` becomes ``"1k"``, ``1.5``
becomes ``"1500m"``, the number ``50`` becomes the string ``"50"``. Webhooks and agents get only
this canonical form. Exponents are not modelled.
"""

from fractions import Fraction
from math import ceil

from contract.quantity import parse_quantity

_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class InvalidQuantity(ValueError):
    """A value is not a quantity; the message is apimachinery's ``resource.ErrFormatWrong``."""


def canonical(value: object) -> str:
    """Write *value* in canonical form.

    Raises:
        InvalidQuantity: it is not a quantity.
    """
    if value is None:  # JSON null decodes to the zero quantity
        return "0"
    number = parse_quantity(value)
    if number is None:
        raise InvalidQuantity(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    exact = Fraction(number)
    if str(value).endswith("i") and abs(exact) >= 1024 and exact.denominator == 1:
        return _suffixed(int(exact), 1024, _BINARY)
    nano = ceil(abs(exact) * 10**9) * (1 if exact >= 0 else -1)  # rounded away from zero
    return _suffixed(nano, 1000, _DECIMAL) if nano else "0"


def _suffixed(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while power + 1 < len(suffixes) and number % base == 0:
        number, power = number // base, power + 1
    return f"{number}{suffixes[power]}"
