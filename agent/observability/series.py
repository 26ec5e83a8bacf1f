"""Gauges of what is held and used of each card, by card and by container. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from agent.cards.card_use import CardUse
from agent.holdings.holding import CardTotals, HeldShare, Holding, NodeHoldings
from agent.usage.join import MeasuredUse, NodeMeasurement
from contract.demand import CORES_PER_CARD

PREFIX = "gpu_turnstile_agent_"
_CONTAINER = ("namespace", "pod", "container", "card")
_CARD = ("card",)

_GPU_MANAGER = ("pod_name", "namespace", "node", "container_name")
_TOTAL = "total"
_MIB = 1 << 20

Samples = Mapping[tuple[str, ...], float]
Value = float | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Series:
    """One gauge: all of its series at one moment, by the values of its labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Samples


class ContainerLimit(NamedTuple):
    """What limits each process of a container on one card.

    Attributes:
        labels: namespace, pod, container and card.
        percent: of the card's SMs.
        memory: bytes; ``None`` while it is not known.
        clients: connected processes of the container; ``None`` if they are not known.
    """

    labels: tuple[str, ...]
    percent: int
    memory: int | None
    clients: int | None


_OF_LIMITS: tuple[tuple[str, str, Callable[[ContainerLimit], Value]], ...] = (
    (
        "core_limit",
        "Percent of a card's SMs that each process may use (MPS).",
        lambda limit: limit.percent,
    ),
    (
        "memory_limit_bytes",
        "Memory of a card that each process may allocate (MPS).",
        lambda limit: limit.memory,
    ),
    (
        "mps_clients",
        "Processes that are clients of the MPS daemon of a card.",
        lambda limit: limit.clients,
    ),
)

_OF_CARDS: tuple[tuple[str, str, Callable[[CardTotals], Value]], ...] = (
    ("cores_held", "Hundredths of a card that containers hold.", lambda total: total.cores_held),
    ("cores_free", "Hundredths of a card that no container holds.", lambda total: total.cores_free),
    ("memory_held_bytes", "Memory that containers hold.", lambda total: total.memory_held),
    ("memory_free_bytes", "Memory that no container holds.", lambda total: total.memory_free),
)
_OF_CARD_USE: tuple[tuple[str, str, Callable[[CardUse], Value]], ...] = (
    ("cores_used", "Hundredths of the time in which a card computed.", lambda use: use.cores),
    ("memory_used_bytes", "Memory of a card in use, by the driver, too.", lambda use: use.memory),
)
_OF_HELD_SHARES: tuple[tuple[str, str, Callable[[HeldShare], Value]], ...] = (
    ("cores_held", "Hundredths of a card that a container holds.", lambda share: share.cores),
    ("memory_held_bytes", "Memory of a card that a container holds.", lambda share: share.memory),
)
_OF_CONTAINERS: tuple[tuple[str, str, Callable[[MeasuredUse], Value]], ...] = (
    ("cores_used", "Hundredths of a card that a container uses.", lambda used: used.cores),
    ("memory_used_bytes", "Memory of a card that a container uses.", lambda used: used.memory),
)


def card_series(
    holdings: NodeHoldings | None = None, measured: NodeMeasurement | None = None
) -> Iterator[Series]:
    """Make the gauges of what is held and used; without samples while nothing is known.

    The use of containers that are not among the holders is left out.
    """
    holdings, measured = holdings or NodeHoldings(), measured or NodeMeasurement()
    held = [
        (_labels(each, card), share)
        for each in holdings.current
        for card, share in holdings.shares(each).items()
    ]
    used = [
        (_labels(each, card), found)
        for each in holdings.current
        for card, found in measured.use.get(each.ref, {}).items()
    ]
    yield from _series("container", _CONTAINER, _OF_HELD_SHARES, held)
    yield from _series("container", _CONTAINER, _OF_CONTAINERS, used)
    totals = holdings.totals
    yield from _series("card", _CARD, _OF_CARDS, [((k,), v) for k, v in totals.items()])
    uses = [((card,), measured.cards[card]) for card in totals if card in measured.cards]
    yield from _series("card", _CARD, _OF_CARD_USE, uses)


def limit_series(
    limits: Iterable[ContainerLimit] = (), problems: Mapping[str, str] | None = None
) -> Iterator[Series]:
    """Make the gauges of what MPS limits; *problems* is why each card with shares is not served."""
    yield from _series(
        "container", _CONTAINER, _OF_LIMITS, [(each.labels, each) for each in limits]
    )
    yield Series(
        f"{PREFIX}mps_problem",
        "Whether the MPS daemon of a card with shares does not serve, by reason.",
        ("card", "reason"),
        {(card, why): float(bool(why)) for card, why in (problems or {}).items()},
    )


def _series(
    prefix: str,
    labels: tuple[str, ...],
    gauges: Iterable[tuple[str, str, Callable[[T], Value]]],
    items: Collection[tuple[tuple[str, ...], T]],
) -> Iterator[Series]:
    for name, text, value in gauges:
        samples: dict[tuple[str, ...], float] = defaultdict(float)
        for key, item in items:
            found = value(item)
            if found is not None:
                # Two pods of one name, one of which is ending, have the same labels.
                samples[key] += found
        yield Series(f"{PREFIX}{prefix}_{name}", text, labels, samples)


def _labels(holder: Holding, card: str) -> tuple[str, ...]:
    ref = holder.ref
    return ref.pod.namespace, ref.pod.name, ref.container, card


def gpu_manager_series(
    node: str,
    indices: Mapping[str, int],
    holdings: NodeHoldings | None,
    measured: NodeMeasurement | None,
) -> Iterator[Series]:
    """Make gpu-manager's four gauges of what containers request and use.

    Names, labels and units are those of tkestack/gpu-manager, ``pkg/services/display/display.go``:
    a card is ``gpu<index>``, all cards together are ``total``; use of cores is in hundredths of a
    card, a request of them in cards, memory in MiB. *indices* are those of the cards, by UUID.
    """
    cores: dict[tuple[str, ...], float] = {}
    memory: dict[tuple[str, ...], float] = {}
    requested_cores: dict[tuple[str, ...], float] = {}
    requested_memory: dict[tuple[str, ...], float] = {}
    use = measured.use if measured is not None else {}
    holdings = holdings or NodeHoldings()
    for each in holdings.current:
        of = each.ref.pod.name, each.ref.pod.namespace, node, each.ref.container
        shares = holdings.shares(each).values()
        requested_cores[*of, _TOTAL] = sum(share.cores for share in shares) / CORES_PER_CARD
        requested_memory[*of, _TOTAL] = sum(share.memory for share in shares) / _MIB
        for name, used in _by_card(use.get(each.ref, {}), indices):
            if used.cores is not None:
                cores[*of, name] = used.cores
            if used.memory is not None:
                memory[*of, name] = used.memory / _MIB
    for name, text, label, samples in (
        ("gpu_utilization", "gpu utilization", "gpu", cores),
        ("gpu_memory_total", "gpu memory usage in MiB", "gpu_memory", memory),
        ("request_gpu_utilization", "request of gpu utilization", "req_of_gpu", requested_cores),
        (
            "request_gpu_memory",
            "request of gpu memory in MiB",
            "req_of_gpu_memory",
            requested_memory,
        ),
    ):
        yield Series(f"container_{name}", text, (*_GPU_MANAGER, label), samples)


def _by_card(
    used: Mapping[str, MeasuredUse], indices: Mapping[str, int]
) -> Iterator[tuple[str, MeasuredUse]]:
    """Return the use by gpu-manager's card names, and the sum if no card's value is missing."""
    if not used:
        return
    for uuid, each in used.items():
        yield f"gpu{indices[uuid]}", each
    cores = [each.cores for each in used.values() if each.cores is not None]
    memory = [each.memory for each in used.values() if each.memory is not None]
    yield (
        _TOTAL,
        MeasuredUse(
            sum(cores) if len(cores) == len(used) else None,
            sum(memory) if len(memory) == len(used) else None,
        ),
    )
