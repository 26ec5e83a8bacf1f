"""Samples of processes joined with the record, and who uses more of a card than it holds. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.allocator.interfaces import ContainerRef
from agent.cards.card_use import CardUse
from agent.usage.holdings import CardHolder, HeldShare
from contract.demand import CORES_PER_CARD

_MIB = 1 << 20
_NOTHING = HeldShare(0, 0)


class ProcessOwner(NamedTuple):
    """The container that a process is in, as the container runtime knows it."""

    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What one container uses of one card; ``None`` is what the driver cannot tell."""

    cores: int | None
    """Hundredths of the card."""
    memory: int | None
    """Bytes."""


Use = Mapping[ContainerRef, Mapping[str, MeasuredUse]]
"""What containers use, by container, by card UUID."""


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """One look: what the driver tells, by card UUID, and what containers use."""

    cards: Mapping[str, CardUse] = field(default_factory=dict)
    use: Use = field(default_factory=dict)


def join(
    cards: Mapping[str, CardUse], owners: Mapping[int, ProcessOwner], holders: Iterable[CardHolder]
) -> Use:
    """Return what each holder uses of each card: of those it holds, and of others it is on.

    A holder without a process on its card uses none of it. Processes of other containers and of
    the host are left out, and so is a holder whose pod's UID is not known yet.
    """
    pids: dict[tuple[ProcessOwner, str], set[int]] = defaultdict(set)
    places: dict[ProcessOwner, set[str]] = defaultdict(set)
    for uuid, use in cards.items():
        for pid in (use.process_cores or {}).keys() | (use.process_memory or {}).keys():
            owner = owners.get(pid)
            if owner is not None:
                pids[owner, uuid].add(pid)
                places[owner].add(uuid)
    found = {}
    for holder in holders:
        if not holder.runtime_uid:
            continue
        owner = ProcessOwner(holder.runtime_uid, holder.ref.container)
        # A card that was not looked at is nobody's zero.
        on = (holder.shares.keys() & cards.keys()) | places.get(owner, set())
        found[holder.ref] = {
            uuid: _used(cards[uuid], pids.get((owner, uuid), ())) for uuid in sorted(on)
        }
    return found


def _used(use: CardUse, pids: Iterable[int]) -> MeasuredUse:
    cores, memory = use.process_cores, use.process_memory
    return MeasuredUse(
        # Each process is sampled at a time of its own: together they may seem to have more.
        None if cores is None else min(sum(cores.get(pid, 0) for pid in pids), CORES_PER_CARD),
        None if memory is None else sum(memory.get(pid, 0) for pid in pids),
    )


# --- more than a share ----------------------------------------------------------------------

SPARE_CORES = 10
SPARE_MEMORY = 512 * _MIB
"""Hundredths of a card, and bytes, beyond a share that are let pass."""
LASTING_SECONDS = 30.0
LASTING_LOOKS = 3
"""How long it has to go on, and how many looks in a row have to find it."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """A container that takes more than it holds: of which card and how much."""

    ref: ContainerRef
    text: str


@dataclass(slots=True)
class _Streak:
    """Looks in a row that found too much."""

    since: float
    looks: int = 0


class OveruseWatch:
    """Finds containers that use more of a card than they hold, for long. For one thread.

    What holds a container to its share is a library inside it, and often there is none. One sample
    says little: use of cores comes in bursts, and each process has some hundred MiB of the driver's
    own on its card, for which nobody asks.
    """

    def __init__(self) -> None:
        self._streaks: dict[ContainerRef, _Streak] = {}
        self._told: set[ContainerRef] = set()

    def find(self, now: float, holders: Iterable[CardHolder], use: Use) -> list[Overuse]:
        """Apply one measurement; return the containers to report now, each once.

        Containers that hold nothing any more are forgotten.
        """
        there, found = set(), []
        for holder in holders:
            ref = holder.ref
            there.add(ref)
            texts = tuple(_excess(holder, use.get(ref, {})))
            if not texts:
                self._streaks.pop(ref, None)
                continue
            streak = self._streaks.setdefault(ref, _Streak(now))
            streak.looks += 1
            lasting = now - streak.since >= LASTING_SECONDS
            if lasting and streak.looks >= LASTING_LOOKS and ref not in self._told:
                self._told.add(ref)
                found.append(Overuse(ref, "; ".join(texts)))
        self._told &= there
        self._streaks = {ref: each for ref, each in self._streaks.items() if ref in there}
        return found

    def interrupt(self) -> None:
        """Restart all streaks: a measurement has failed."""
        self._streaks.clear()


def _excess(holder: CardHolder, used: Mapping[str, MeasuredUse]) -> Iterator[str]:
    """List what a container takes beyond its share, card by card."""
    for uuid, each in sorted(used.items()):
        share = holder.shares.get(uuid, _NOTHING)
        allowed = max(share.cores, holder.core_limit or 0) if share.cores else 0
        if each.cores is not None and each.cores > allowed + SPARE_CORES:
            yield f"uses {each.cores} cores of {uuid} and holds {share.cores}"
        if each.memory is not None and each.memory > share.memory + SPARE_MEMORY:
            yield f"uses {each.memory // _MIB} MiB of {uuid} and holds {share.memory // _MIB}"
