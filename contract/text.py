"""Texts: checks of values in annotations that others wrote as JSON; counts in messages."""

import json
from typing import TypeGuard

from contract.errors import InvalidRecord


def read_json(text: str, name: str) -> object:
    """Read JSON.

    Raises:
        InvalidRecord: *text* is not JSON; the message has *name*, the annotation's.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{name}: not JSON: {error}") from error


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that can be encoded: JSON may escape half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def format_count(count: int, noun: str) -> str:
    """Format a count and its noun: ``1 card``, ``2 cards``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
