"""Text that others have written as JSON."""

from typing import TypeGuard


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that can be written: an escape may be half of a character."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
