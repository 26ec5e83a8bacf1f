"""The one error of this package."""


class NoPlacement(Exception):
    """No card fits; the message has the reason for each card."""
