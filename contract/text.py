"""Texts: checks of values in annotations that others wrote; labels; UUIDs; counts in messages."""

import json
import re
from typing import TypeGuard

from contract.errors import InvalidRecord

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")


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
    if value.isascii():
        return True
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


def to_label(text: str) -> str:
    """Return a text with dashes for what a label's value cannot have; not cut to its length.

    ``NVIDIA A100-SXM4-80GB`` becomes ``NVIDIA-A100-SXM4-80GB``, which is also what GPU Feature
    Discovery writes.
    """
    return _NOT_IN_LABELS.sub("-", text)


def fold_uuid(text: str) -> str:
    """Return a card's UUID as it is compared: people write it in upper or lower case.

    Readers refuse a node whose cards have UUIDs that differ in case only.
    """
    return text.lower()
