"""Which pods would have to end for another one to run. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from placement.cluster.fit import Fit, check
from placement.cluster.pods import Shape
from view.model.occupancy import Held, Occupancy
from view.model.stories import Change
from view.model.words import count_of

_MOST_TOLD = 3
_MOST_PODS = 4


class _Way(NamedTuple):
    """The smallest set of pods of a node that would have to end."""

    occupancy: Occupancy
    pods: tuple[Held, ...]
    alone: int  # how many pods of the node would do each by itself

    @property
    def rank(self) -> tuple[int, int, str]:
        """Return what it costs; the name decides between equals."""
        return len(self.pods), sum(map(_size, self.pods)), self.occupancy.view.node.name


def find_endings(shape: Shape, nodes: Sequence[Occupancy]) -> tuple[Change, ...]:
    """Return pods that would have to end, the fewest and smallest first, one set a node."""
    found = sorted((way for each in nodes if (way := _way(shape, each))), key=lambda way: way.rank)
    ways = [way for way in found if len(way.pods) == len(found[0].pods)]
    told = ways[:_MOST_TOLD]
    if not told:
        return ()
    if len(told[0].pods) == 1:
        more = sum(way.alone for way in ways) - len(told)
        besides = f"ending one of {count_of(more, 'other pod')} would do too"
    else:
        more = len(ways) - len(told)
        besides = f"there are such pods on {count_of(more, 'other node')}"
    return tuple(
        Change(
            "free-pods",
            "end " + " and ".join(_naming(held, way.occupancy) for held in way.pods),
            "admin",
            (way.occupancy.view.node.name,),
            needs="the right to delete pods in "
            + " and ".join(sorted({held.pod.namespace for held in way.pods})),
            besides=besides if more and way is told[-1] else "",
        )
        for way in told
    )


def _way(shape: Shape, occupancy: Occupancy) -> _Way | None:
    """Return the smallest set of pods of a node that have to end; ``None`` if none would do."""
    if not occupancy.held or not _fits_without(shape, occupancy, occupancy.held):
        return None
    by_size = sorted(occupancy.held, key=lambda each: (_size(each), str(each.pod)))
    alone = [each for each in by_size if _fits_without(shape, occupancy, [each])]
    if alone:
        return _Way(occupancy, (alone[0],), len(alone))
    chosen = list(by_size)  # leave out the largest that are not needed
    for each in reversed(by_size):
        rest = [other for other in chosen if other is not each]
        if rest and _fits_without(shape, occupancy, rest):
            chosen = rest
    return _Way(occupancy, tuple(chosen), 0) if len(chosen) <= _MOST_PODS else None


def _fits_without(shape: Shape, occupancy: Occupancy, pods: Iterable[Held]) -> bool:
    return isinstance(check(shape, occupancy.view_without({each.pod.uid for each in pods})), Fit)


def _size(held: Held) -> int:
    return sum(cores for _, cores, *_ in held.taken)


def _naming(held: Held, occupancy: Occupancy) -> str:
    cards = occupancy.view.node.cards
    on = sorted({cards[place].index for place, *_ in held.taken})
    noun = "card" if len(on) == 1 else "cards"
    cores, blocks = (sum(row[slot] for row in held.taken) for slot in (1, 2))
    where = f"{noun} {', '.join(map(str, on))} of {occupancy.view.node.name}"
    return (
        f"pod {held.pod} on {where} (frees {count_of(cores, 'core')}, {count_of(blocks, 'block')})"
    )
