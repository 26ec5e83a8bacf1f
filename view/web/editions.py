"""Editions: reports on the cluster, numbered, and which nodes changed from one to another. Pure.

A browser that has an edition asks for what changed since, and gets these nodes and no others.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated

from view.model.reports import ClusterReport


@dataclass(frozen=True, slots=True)
class Edition:
    """One report and its history."""

    number: Annotated[int, "counts up from 1; 0 is the one before anything was read."]
    report: Annotated[ClusterReport, "on the cluster."]
    since: Annotated[Mapping[str, int], "of each node the edition in which it became as it is."]
    oldest: Annotated[int, "changes before this edition are not known."]

    def changed(self, seen: int) -> AbstractSet[str] | None:
        """Return the nodes that changed since an edition; ``None`` where that is not known."""
        if not self.oldest <= seen <= self.number:
            return None
        return {name for name, number in self.since.items() if number > seen}


EMPTY = Edition(0, ClusterReport((), (), (), ()), {}, 1)
"""Before anything was read."""


def next_edition(before: Edition, report: ClusterReport, *, first: int = 1) -> Edition:
    """Return the edition after *before*; *before* itself where nothing has changed.

    Args:
        before: the last edition.
        report: on the cluster as it is now.
        first: number of the first one. Not 1 in a process that follows another: a browser would
            take its edition for one of the other's.
    """
    if before.number and before.report == report:
        return before
    number = before.number + 1 if before.number else first
    old = {each.name: each for each in before.report.nodes}
    # Of equal nodes the one before: what was made of it can be used again.
    kept = {
        each.name: old[each.name] if old.get(each.name) == each else each for each in report.nodes
    }
    since = {
        name: before.since[name] if each is old.get(name) else number for name, each in kept.items()
    }
    return Edition(
        number,
        replace(report, nodes=tuple(kept.values())),
        since,
        before.oldest if before.number else number,
    )
