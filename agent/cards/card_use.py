"""The use of one card and its processes: values, and how the driver's samples are read. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contract.demand import CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class CardUse:
    """The use of one card; ``None`` where the driver gives no value.

    Attributes:
        cores: hundredths of the time in which the card computed.
        memory: bytes in use, those of the driver itself included.
        process_cores: hundredths of the card, by process; a process that is missing uses none.
        process_memory: bytes, by process; a process that is missing uses none.
        problems: why a value is missing.
    """

    cores: int | None = None
    memory: int | None = None
    process_cores: Mapping[int, int] | None = None
    process_memory: Mapping[int, int] | None = None
    problems: tuple[str, ...] = ()


class CoreSample(NamedTuple):
    """One process's use of a card's cores, in hundredths, *at* some Unix microsecond."""

    pid: int
    at: int
    cores: int


def newest_samples(samples: Iterable[CoreSample], *, since: int) -> dict[int, int]:
    """Return the newest plausible sample of each process.

    NVML asks for room before it fills it, and drivers leave what they did not fill as it was or at
    zero: such entries have no process, a time before the one asked for, or more than a whole card.
    Samples that are not newer than *since*, Unix microseconds, are left out.
    """
    newest: dict[int, CoreSample] = {}
    for each in samples:
        if each.pid <= 0 or each.at <= since or not 0 <= each.cores <= CORES_PER_CARD:
            continue
        known = newest.get(each.pid)
        # Of two samples of the same time the larger one, whatever order NVML gives them in.
        if known is None or (each.at, each.cores) > (known.at, known.cores):
            newest[each.pid] = each
    return {pid: each.cores for pid, each in newest.items()}


def memory_by_process(entries: Iterable[tuple[int, int | None]]) -> dict[int, int] | None:
    """Return the bytes of card memory by process; ``None`` if one process has no value.

    A process that computes and draws is listed twice, each time with all that it has.
    """
    found: dict[int, int] = {}
    for pid, memory in entries:
        if memory is None:
            return None
        found[pid] = max(found.get(pid, 0), memory)
    return found
