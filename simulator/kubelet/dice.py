"""The one place where randomness begins."""

from random import Random


def dice(*seed: object) -> Random:
    """Make dice that always fall the same way for equal *seed*."""
    return Random("/".join(map(str, seed)))  # noqa: S311 - a simulation wants repeatable dice
