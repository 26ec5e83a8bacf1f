"""Editions: numbered reports on the cluster, with the nodes that changed in each. Pure.

A browser sends the number of its edition and gets only the nodes that changed since.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated

from view.model.reports import ClusterReport


@dataclass(frozen=True, slots=True)
class Edition:
    """One report, and in which edition each node last changed."""

    number: Annotated[int, "counts up; 0 before anything was read."]
    report: Annotated[ClusterReport, "the report on the cluster."]
    since: Annotated[Mapping[str, int], "by node, the edition in which it last changed."]
    oldest: Annotated[int, "first edition since which changes are known."]

    def changed(self, seen: int) -> AbstractSet[str] | None:
        """Return the nodes that changed since an edition; ``None`` if unknown."""
        if not self.oldest <= seen <= self.number:
            return None
        return {name for name, number in self.since.items() if number > seen}


EMPTY = Edition(0, ClusterReport((), (), (), ()), {}, 1)
"""The edition before anything was read."""


def next_edition(before: Edition, report: ClusterReport, *, first: int = 1) -> Edition:
    """Return the edition after *before*, or *before* itself if nothing changed.

    After a restart, *first* must be a new number: browsers have those of the previous process.
    """
    if before.number and before.report == report:
        return before
    number = before.number + 1 if before.number else first
    old = {each.name: each for each in before.report.nodes}
    # Keep the previous object of an unchanged node: its rendered row is cached.
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
