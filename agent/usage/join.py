"""Samples of processes, the container of each process, and the record, joined. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.allocator.interfaces import ContainerRef
from agent.cards.card_use import CardUse
from agent.usage.holdings import Holder

_WHOLE = 100


class Owner(NamedTuple):
    """The container that a process is in, as the container runtime knows it."""

    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Used:
    """What one container uses of one card; ``None`` is what the driver cannot tell."""

    cores: int | None
    """Hundredths of the card."""
    memory: int | None
    """Bytes."""


Use = Mapping[ContainerRef, Mapping[str, Used]]
"""What containers use, by container, by card UUID."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One look: what the driver tells, by card UUID, and what containers use."""

    cards: Mapping[str, CardUse] = field(default_factory=dict)
    use: Use = field(default_factory=dict)


def join(
    cards: Mapping[str, CardUse], owners: Mapping[int, Owner], holders: Iterable[Holder]
) -> Use:
    """Return what each holder uses of each card: of those it holds, and of others it is on.

    A holder without a process on its card uses none of it. Processes of other containers and of
    the host are left out, and so is a holder whose pod's UID is not known yet.
    """
    pids: dict[tuple[Owner, str], set[int]] = defaultdict(set)
    places: dict[Owner, set[str]] = defaultdict(set)
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
        owner = Owner(holder.runtime_uid, holder.ref.container)
        # A card that was not looked at is nobody's zero.
        on = (holder.shares.keys() & cards.keys()) | places.get(owner, set())
        found[holder.ref] = {
            uuid: _used(cards[uuid], pids.get((owner, uuid), ())) for uuid in sorted(on)
        }
    return found


def _used(use: CardUse, pids: Iterable[int]) -> Used:
    cores, memory = use.process_cores, use.process_memory
    return Used(
        # Each process is sampled at a time of its own: together they may seem to have more.
        None if cores is None else min(sum(cores.get(pid, 0) for pid in pids), _WHOLE),
        None if memory is None else sum(memory.get(pid, 0) for pid in pids),
    )
