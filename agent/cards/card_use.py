"""How much of a card is used, and by which processes: what the driver's answers mean. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_WHOLE = 100


@dataclass(frozen=True, slots=True)
class CardUse:
    """What the driver tells of one card's use; ``None`` is what it cannot tell.

    Attributes:
        cores: hundredths of the time in which the card computed.
        memory: bytes in use, those of the driver itself included.
        process_cores: hundredths of the card, by process; who is missing uses none.
        process_memory: bytes, by process; who is missing uses none.
        problems: why something cannot be told.
    """

    cores: int | None = None
    memory: int | None = None
    process_cores: Mapping[int, int] | None = None
    process_memory: Mapping[int, int] | None = None
    problems: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One process's use of a card's cores, in hundredths, *at* some Unix microsecond."""

    pid: int
    at: int
    cores: int


def newest_samples(samples: Iterable[Sample], *, since: int) -> dict[int, int]:
    """Return the newest plausible sample of each process.

    NVML asks for room before it fills it, and drivers leave what they did not fill as it was or at
    zero: such entries have no process, a time before the one asked for, or more than a whole card.
    What is not newer than *since*, Unix microseconds, was not asked for.
    """
    newest: dict[int, Sample] = {}
    for each in samples:
        if each.pid <= 0 or each.at <= since or not 0 <= each.cores <= _WHOLE:
            continue
        known = newest.get(each.pid)
        # Of two at the same time the larger: an order of NVML's decides nothing.
        if known is None or (each.at, each.cores) > (known.at, known.cores):
            newest[each.pid] = each
    return {pid: each.cores for pid, each in newest.items()}


def memory_by_process(entries: Iterable[tuple[int, int | None]]) -> dict[int, int] | None:
    """Return how much memory each process has of a card; ``None`` where one cannot be told.

    A process that computes and draws is listed twice, each time with all that it has.
    """
    found: dict[int, int] = {}
    for pid, memory in entries:
        if memory is None:
            return None
        found[pid] = max(found.get(pid, 0), memory)
    return found
