"""The only source of random numbers."""

from random import Random


def seeded_random(*seed: object) -> Random:
    """Return a generator of random numbers; equal seeds give equal numbers."""
    return Random("/".join(map(str, seed)))  # noqa: S311 - a simulation must be repeatable
