"""How many examples a property is tried with, where it is not as many as usual."""

from hypothesis import settings


def share(percent: int) -> int:
    """Return *percent* of the examples that are usual: 60, and fewer in ``make test-fast``."""
    return max(1, settings().max_examples * percent // 100)
