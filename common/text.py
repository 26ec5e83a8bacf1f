"""Texts from outside: durations are read, and others are shortened before they are shown."""

import re

_PART = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def cut(text: str, length: int) -> str:
    """Shorten *text* to at most *length* characters, with "..." at the end."""
    return text if len(text) <= length else text[: length - 3] + "..."


def parse_seconds(text: str) -> float | None:
    """Return the seconds in a duration as ``kubectl`` writes it, such as ``500ms`` or ``1h30m``.

    ``None`` if it is no such duration, or negative.
    """
    if re.fullmatch(f"({_PART})+", text) is None:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
