"""Joins the samples of processes with the snapshot, and finds overuse of cards. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.cards.card_use import CardUse
from agent.holdings.holding import ContainerRef, HeldShare, NodeHoldings
from contract.demand import CORES_PER_CARD

_MIB = 1 << 20
_NOTHING = HeldShare(0, 0)


class ProcessOwner(NamedTuple):
    """The container of a process, with the pod UID of the container runtime."""

    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """The use of one card by one container; ``None`` if the driver reports no value."""

    cores: int | None
    """Hundredths of the card."""
    memory: int | None
    """Bytes."""


Use = Mapping[ContainerRef, Mapping[str, MeasuredUse]]
"""The use of cards, by container and card UUID."""


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """One measurement.

    Attributes:
        cards: the use of each card that the driver reports, by UUID.
        use: the use by each container.
    """

    cards: Mapping[str, CardUse] = field(default_factory=dict)
    use: Use = field(default_factory=dict)


def join(
    cards: Mapping[str, CardUse], owners: Mapping[int, ProcessOwner], holdings: NodeHoldings
) -> Use:
    """Return each container's use of its cards, and of other cards on which it has processes.

    A holder without a process on its card uses none of it. Processes of other containers and of
    the host are left out, and so are holders whose pod's UID is not known yet.
    """
    pids: dict[tuple[ProcessOwner, str], set[int]] = defaultdict(set)
    cards_of: dict[ProcessOwner, set[str]] = defaultdict(set)
    for uuid, use in cards.items():
        for pid in (use.process_cores or {}).keys() | (use.process_memory or {}).keys():
            owner = owners.get(pid)
            if owner is not None:
                pids[owner, uuid].add(pid)
                cards_of[owner].add(uuid)
    found = {}
    for holder in holdings.current:
        if not holder.runtime_uid:
            continue
        owner = ProcessOwner(holder.runtime_uid, holder.ref.container)
        # A card that was not measured has no entry, instead of zero.
        on = (holder.cards.keys() & cards.keys()) | cards_of.get(owner, set())
        found[holder.ref] = {
            uuid: _used(cards[uuid], pids.get((owner, uuid), ())) for uuid in sorted(on)
        }
    return found


def _used(use: CardUse, pids: Iterable[int]) -> MeasuredUse:
    cores, memory = use.process_cores, use.process_memory
    return MeasuredUse(
        # Processes are sampled at different times: their sum may exceed the whole card.
        None if cores is None else min(sum(cores.get(pid, 0) for pid in pids), CORES_PER_CARD),
        None if memory is None else sum(memory.get(pid, 0) for pid in pids),
    )


# --- more than a share ----------------------------------------------------------------------

TOLERATED_CORES = 10
TOLERATED_MEMORY = 512 * _MIB
"""Tolerated use beyond a share: hundredths of a card, and bytes."""
REPORT_AFTER_SECONDS = 30.0
REPORT_AFTER_MEASUREMENTS = 3
"""Overuse is reported if it lasts so long, and in so many successive measurements."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """A container that uses more than it holds; *text* has the cards and amounts."""

    ref: ContainerRef
    text: str


@dataclass(slots=True)
class _Streak:
    """Successive measurements that found overuse by one container."""

    since: float
    measurements: int = 0


class OveruseWatch:
    """Finds containers that use more of a card than they hold for a longer time. For one thread.

    Shares are enforced by a library inside the container, if at all. A single sample is not enough:
    use of cores comes in bursts, and each process has some hundred MiB of the driver's own on its
    card, which pods do not request.
    """

    def __init__(self) -> None:
        self._streaks: dict[ContainerRef, _Streak] = {}
        self._reported: set[ContainerRef] = set()

    def find(self, now: float, holdings: NodeHoldings, use: Use) -> list[Overuse]:
        """Apply one measurement; return the containers to report now, each only once.

        Containers that do not hold cards any more are forgotten.
        """
        present, found = set(), []
        for holder in holdings.current:
            ref = holder.ref
            present.add(ref)
            texts = tuple(
                _excess(holdings.shares(holder), holder.core_limit or 0, use.get(ref, {}))
            )
            if not texts:
                self._streaks.pop(ref, None)
                continue
            streak = self._streaks.setdefault(ref, _Streak(now))
            streak.measurements += 1
            lasting = now - streak.since >= REPORT_AFTER_SECONDS
            if (
                lasting
                and streak.measurements >= REPORT_AFTER_MEASUREMENTS
                and ref not in self._reported
            ):
                self._reported.add(ref)
                found.append(Overuse(ref, "; ".join(texts)))
        self._reported &= present
        self._streaks = {ref: each for ref, each in self._streaks.items() if ref in present}
        return found

    def interrupt(self) -> None:
        """Restart all streaks: a measurement has failed."""
        self._streaks.clear()


def _excess(
    shares: Mapping[str, HeldShare], core_limit: int, used: Mapping[str, MeasuredUse]
) -> Iterator[str]:
    """Describe a container's use beyond its share, card by card."""
    for uuid, each in sorted(used.items()):
        share = shares.get(uuid, _NOTHING)
        allowed = max(share.cores, core_limit) if share.cores else 0
        if each.cores is not None and each.cores > allowed + TOLERATED_CORES:
            yield f"uses {each.cores} cores of {uuid} and holds {share.cores}"
        if each.memory is not None and each.memory > share.memory + TOLERATED_MEMORY:
            yield f"uses {each.memory // _MIB} MiB of {uuid} and holds {share.memory // _MIB}"
