"""Values that others have written as JSON, in annotations."""

import json
from typing import TypeGuard

from contract.errors import InvalidRecord


def read_json(text: str, name: str) -> object:
    """Read JSON.

    Raises:
        InvalidRecord: it is none; *name* is that of the annotation.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"{name}: not JSON: {error}") from error


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that can be written: an escape may be half of a character."""
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
