"""The one error of this package."""


class NoPlacement(Exception):
    """No card fits; the message says for each card why not."""
