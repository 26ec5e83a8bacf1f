"""Editions: reports on the cluster, numbered, and which nodes changed from one to another. Pure.

A browser that has an edition asks for what changed since, and gets these nodes and no others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from view.model.reports import ClusterReport, NodeReport

_MOST_GONE = 1000
"""Nodes that have gone and are remembered; a browser that is older loads the whole page."""


class Delta(NamedTuple):
    """What happened to the nodes since an edition.

    Attributes:
        changed: those that are new or changed, by name.
        gone: names of those that are not there any more.
    """

    changed: tuple[NodeReport, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edition:
    """One report and its history.

    Attributes:
        number: counts up from 1; 0 is the one before anything was read.
        report: on the cluster.
        since: of each node the edition in which it became as it is.
        gone: of each node that has gone the edition in which it went.
        oldest: changes before this edition are not known.
    """

    number: int
    report: ClusterReport
    since: Mapping[str, int]
    gone: Mapping[str, int]
    oldest: int

    def delta(self, seen: int) -> Delta | None:
        """Return what changed since an edition; ``None`` where that is not known."""
        if not self.oldest <= seen <= self.number:
            return None
        return Delta(
            tuple(each for each in self.report.nodes if self.since[each.name] > seen),
            tuple(name for name, number in self.gone.items() if number > seen),
        )


EMPTY = Edition(0, ClusterReport((), (), (), ()), {}, {}, 1)
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
    kept = {each.name: _older(old.get(each.name), each) for each in report.nodes}
    report = replace(report, nodes=tuple(kept.values()))
    since = {
        name: before.since[name] if each is old.get(name) else number for name, each in kept.items()
    }
    gone = {name: went for name, went in before.gone.items() if name not in since}
    gone |= {name: number for name in old if name not in since}
    oldest = before.oldest if before.number else number
    if len(gone) > _MOST_GONE:
        gone, oldest = {}, number
    return Edition(number, report, since, gone, oldest)


def _older(before: NodeReport | None, node: NodeReport) -> NodeReport:
    return before if before is not None and before == node else node
