"""Reads the extender's state as its other threads may change it meanwhile."""

from collections.abc import Sequence

from scheduler.state import State

Amounts = Sequence[tuple[int, ...]]


def free_amounts(state: State, node: str = "n1") -> Amounts | None:
    """Return the free cores and blocks of each card of a node; ``None`` if it is unknown."""
    with state.lock:  # else a change during the read is forgotten: the snapshot is kept
        allocations = state.allocations(node)
        return None if allocations is None else list(allocations.snapshot().free)
