"""The use of one card and its processes: values, and the reading of the driver's samples. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contract.demand import CORES_PER_CARD


@dataclass(frozen=True, slots=True)
class CardUse:
    """The use of one card; ``None`` if the driver returns no value.

    Attributes:
        cores: hundredths of the time in which the card computed.
        memory: bytes in use, those of the driver itself included.
        process_cores: hundredths of the card, by process ID; processes without entry use none.
        process_memory: bytes, by process ID; processes without entry use none.
        problems: why a value is missing.
    """

    cores: int | None = None
    memory: int | None = None
    process_cores: Mapping[int, int] | None = None
    process_memory: Mapping[int, int] | None = None
    problems: tuple[str, ...] = ()


class CoreSample(NamedTuple):
    """One process's use of a card's cores, in hundredths; *at* is in Unix microseconds."""

    pid: int
    at: int
    cores: int


def newest_samples(samples: Iterable[CoreSample], *, since: int) -> dict[int, int]:
    """Return the newest plausible sample of each process.

    NVML fills a buffer that it does not clear: unused entries have no process, an old time, or more
    than a whole card. Samples that are not newer than *since*, Unix microseconds, are left out.
    """
    newest: dict[int, CoreSample] = {}
    for each in samples:
        if each.pid <= 0 or each.at <= since or not 0 <= each.cores <= CORES_PER_CARD:
            continue
        newest_of_process = newest.get(each.pid)
        # Of two samples of the same time take the larger one, whatever their order.
        if newest_of_process is None or (each.at, each.cores) > (
            newest_of_process.at,
            newest_of_process.cores,
        ):
            newest[each.pid] = each
    return {pid: each.cores for pid, each in newest.items()}


def memory_by_process(entries: Iterable[tuple[int, int | None]]) -> dict[int, int] | None:
    """Return the bytes of card memory by process; ``None`` if one process has no value.

    A process that computes and draws is listed twice, each time with all its memory.
    """
    found: dict[int, int] = {}
    for pid, memory in entries:
        if memory is None:
            return None
        found[pid] = max(found.get(pid, 0), memory)
    return found
