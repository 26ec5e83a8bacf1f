"""Shortens text from outside before it is shown."""


def cut(text: str, length: int) -> str:
    """Shorten *text* to at most *length* characters, with "..." at the end."""
    return text if len(text) <= length else text[: length - 3] + "..."
