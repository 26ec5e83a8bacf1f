"""The demand of a pod, container by container.

Counts are read from ``limits``: Kubernetes makes ``requests`` equal for extended
resources (``ValidateResourceRequirements``), and the kubelet loops over ``limits``
when it allocates devices. A limit of 0 asks for nothing, as if it was left out: the kubelet
makes no call for it, and charts write it for a container without a GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

from contract.errors import Fault, FieldError, InvalidDemand, quote
from contract.names import Names
from contract.quantity import parse_quantity
from contract.resource import HUNDRED, Resource, count_of

CORES_PER_CARD = HUNDRED
"""``vcuda-core`` counts hundredths of a card."""

LARGEST_COUNT = 2**31 - 1
"""The kubelet sends the size of a preferred allocation as an int32."""


_MOST_BLOCKS = 2**24
"""More memory than any container is given: 16 TiB in the smallest blocks there are, of 1 MiB."""

_USUAL_BLOCK = 2**28  # bytes: gpu-manager's, and the agent's unless --memory-block is set


# A dict is the answer nearly always, and an abstract class is slow to ask.
_MAPPINGS = (dict, Mapping)


class ContainerKind(StrEnum):
    """The three kinds of containers a kubelet admits, by how it counts devices."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "container"

    __hash__ = str.__hash__  # as equality is; Enum's own is a call in Python


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one container: a count for each resource, in their order.

    Attributes:
        cores: hundredths of a card: 1-99 share one card, more is whole cards.
        memory: memory blocks; 0 when the container names none.
    """

    cores: int
    memory: int

    @property
    def is_share(self) -> bool:
        """Whether the container shares one card instead of owning whole ones."""
        return 0 < self.cores < CORES_PER_CARD

    @property
    def cards(self) -> int:
        """How many cards the container sees."""
        return 1 if self.is_share else self.cores // CORES_PER_CARD

    def most_per_card(self, resource: Resource) -> int:
        """Return the places of the card that gets the most of them."""
        return -(-count_of(self, resource) // max(self.cards, 1))

    def per_card(self, resource: Resource, most: int = LARGEST_COUNT) -> tuple[int, ...]:
        """Share the places out over the cards, as evenly as they go, the first cards one more.

        Args:
            resource: of which resource.
            most: cards to list; a hostile pod may ask for millions, more than any node has.
        """
        each, more = divmod(count_of(self, resource), max(self.cards, 1))
        return tuple(each + (card < more) for card in range(min(self.cards, most)))


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """A container that asks for GPUs.

    Attributes:
        name: the container's name, unique within its pod.
        kind: how the kubelet counts its devices.
        index: its place in ``spec.initContainers`` or ``spec.containers``.
        demand: what it asks for.
    """

    name: str
    kind: ContainerKind
    index: int
    demand: Demand

    @property
    def ordinal(self) -> str:
        """Its place in the pod, as names of annotations have it: ``0``, ``init-0``."""
        return str(self.index) if self.kind is ContainerKind.MAIN else f"init-{self.index}"


@dataclass(frozen=True, slots=True)
class PodDemand:
    """All containers of a pod that ask for GPUs, in the order the kubelet admits them."""

    containers: tuple[ContainerDemand, ...] = ()

    def __bool__(self) -> bool:
        """Whether the pod asks for any GPU at all."""
        return bool(self.containers)

    def of(self, name: str) -> ContainerDemand | None:
        """Find a container by name."""
        return next((each for each in self.containers if each.name == name), None)


def asks_for_gpus(spec: object, names: Names) -> bool:
    """Return whether any container of *spec* asks for one of our resources, validly or not.

    Args:
        spec: a pod spec as decoded JSON; anything else simply asks for nothing.
        names: the names to look for.
    """
    return any(_asks(each, names) for *_, each in walk_containers(spec))


def read_pod_demand(
    spec: object, names: Names, *, path: str = "spec"
) -> tuple[PodDemand, tuple[FieldError, ...]]:
    """Read everything readable and find everything wrong, without raising.

    Args:
        spec: a pod spec as decoded JSON, possibly hostile.
        names: the resource names to read.
        path: the spec's place in its object, for the paths of the findings.

    Returns:
        The demands as far as their counts can be read (a broken rule, such as 150
        cores, does not hide the count), and all findings in field order.
    """
    found: list[ContainerDemand] = []
    errors: list[FieldError] = []
    left = _LeftOver()
    for field, index, container in walk_containers(spec):
        if not _asks(container, names):
            continue
        where = f"{path}.{field}[{index}].resources"
        demand, wrong = _read_container(container, names, where)
        errors += wrong
        if any(count_of(demand, each) for each in Resource):
            kind = _kind(field, container)
            misfit = left.pass_on(kind, demand)
            if misfit:
                limit, value = f"{where}.limits[{names.core}]", str(demand.cores)
                errors.append(FieldError(limit, Fault.INVALID, misfit.detail, misfit.rule, value))
            found.append(ContainerDemand(_name(container), kind, index, demand))
    return PodDemand(tuple(found)), tuple(errors)


SPLIT, NO_ROOM = "split-over-cards", "no-room-on-card"


class Misfit(NamedTuple):
    """Why the places that init containers leave over keep a container from being served.

    Attributes:
        rule: ``SPLIT``, or ``NO_ROOM``.
        detail: the rule and what to do instead, one line.
    """

    rule: str
    detail: str


def find_misfits(demand: PodDemand) -> Iterator[tuple[ContainerDemand, Misfit]]:
    """Yield the containers that init containers before them keep from being served on any node."""
    left = _LeftOver()
    for container in demand.containers:
        misfit = left.pass_on(container.kind, container.demand)
        if misfit:
            yield container, misfit


@dataclass(slots=True)
class _LeftOver:
    """The places that ordinary init containers leave over, if all cards of a node are empty.

    The kubelet hands them on to the containers after them before any other places, and does not
    ask the device plugin which (fact K7). So a container that gets some of them is bound to their
    card; any other may have an empty card. Memory is not counted: at creation nobody knows how
    much a card has.

    Attributes:
        cores: left over, of one card, or of several that are whole.
        memory: blocks left over.
        held: cores of the card of these that containers keep.
        apart: whether the cores are of another card than the memory, which *held* is about.
    """

    cores: int = 0
    memory: int = 0
    held: int = 0
    apart: bool = False

    def pass_on(self, kind: ContainerKind, demand: Demand) -> Misfit | None:
        """Serve the next container; return why no node can, ``None`` where one can."""
        cores, memory = min(self.cores, demand.cores), min(self.memory, demand.memory)
        bound = memory or (cores and not self.apart)
        room = 0 if self.apart else CORES_PER_CARD - self.held
        misfit = None
        if self.cores > CORES_PER_CARD and 0 < cores < self.cores:
            misfit = Misfit(SPLIT, _split(self.cores))
        elif bound and room < min(demand.cores, CORES_PER_CARD):
            of_cores = self.cores if cores and not self.apart else 0
            misfit = Misfit(NO_ROOM, _no_room(of_cores, memory and self.memory, room))
        if kind is ContainerKind.INIT:
            if not self.cores and not memory:
                self.apart = self.memory > 0
            self.cores = max(self.cores, demand.cores)
            self.memory = max(self.memory, demand.memory)
        else:
            self.cores -= cores
            self.memory -= memory
            if bound and not misfit:
                self.held += min(demand.cores, CORES_PER_CARD)
            self.apart = self.apart and self.cores > 0
            if not self.cores and not self.memory:
                self.held = 0
        return misfit


def _split(left: int) -> str:
    return (
        f"init containers before it leave {left} cores over, and the kubelet would hand "
        f"it some of these, from several cards: ask for {left} or more here, or for at "
        f"most {CORES_PER_CARD} there"
    )


def _no_room(cores: int, memory: int, room: int) -> str:
    counts = ((cores, "core"), (memory, "memory block"))
    left = " and ".join(_count(count, unit) for count, unit in counts if count)
    has = f"only {_count(room, 'core')}" if room else "no cores"
    less = f"at most {room} here, or for " if room else ""
    return (
        f"init containers before it leave {left} over, the kubelet would hand it these first, and "
        f"their card has {has} for it: ask for {less}so little there that nothing is left over"
    )


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def parse_pod_demand(spec: object, names: Names, *, path: str = "spec") -> PodDemand:
    """Read what a pod asks for, or say everything that is wrong with it.

    Raises:
        InvalidDemand: with every finding at once.
    """
    demand, errors = read_pod_demand(spec, names, path=path)
    if errors:
        raise InvalidDemand(errors)
    return demand


def walk_containers(spec: object) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Walk the containers in the kubelet's order of admission: init list first, then containers.

    Yields:
        The field, the place in it, and the container.
    """
    if not isinstance(spec, _MAPPINGS):
        return
    for field in ("initContainers", "containers"):
        listed = spec.get(field)
        for index, container in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(container, _MAPPINGS):
                yield field, index, container


def _kind(field: str, container: Mapping[str, Any]) -> ContainerKind:
    if field != "initContainers":
        return ContainerKind.MAIN
    restartable = container.get("restartPolicy") == "Always"
    return ContainerKind.SIDECAR if restartable else ContainerKind.INIT


def _asks(container: Mapping[str, Any], names: Names) -> bool:
    """Return whether a container has one of our resources in its limits or requests, not as 0."""
    if not isinstance(container.get("resources"), _MAPPINGS):
        return False
    resources = names.resources
    return any(
        name in listing and parse_quantity(listing[name]) != 0
        for listing in listings_of(container)
        for name in resources
    )


def listings_of(container: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a container's limits and requests; what is no mapping counts as empty."""
    resources = container.get("resources")
    if not isinstance(resources, _MAPPINGS):
        return {}, {}
    limits, requests = resources.get("limits"), resources.get("requests")
    return (
        limits if isinstance(limits, _MAPPINGS) else {},
        requests if isinstance(requests, _MAPPINGS) else {},
    )


def _name(container: Mapping[str, Any]) -> str:
    name = container.get("name")
    return name if isinstance(name, str) else ""


def _read_container(
    container: Mapping[str, Any], names: Names, path: str
) -> tuple[Demand, list[FieldError]]:
    limits, requests = listings_of(container)
    counts: list[int] = []
    errors: list[FieldError] = []
    readable = True
    for name, resource in names.resources.items():
        count, wrong = _read_resource(name, limits, requests, path, resource)
        errors += wrong
        if count is None:
            readable = False
        elif resource is Resource.CORE:
            errors += _check_cores(count, limits, names, path)
        counts.append(max(count or 0, 0))
    demand = Demand(*counts)
    if readable:  # a count that is no number is told already
        errors += _check_together(demand, names, path)
    return demand, errors


def _read_resource(
    name: str,
    limits: Mapping[str, Any],
    requests: Mapping[str, Any],
    path: str,
    resource: Resource,
) -> tuple[int | None, list[FieldError]]:
    """Read one count: 0 when absent or 0, ``None`` when present and unreadable."""
    if name not in limits:
        if name not in requests:
            return 0, []
        return None, [
            FieldError(
                f"{path}.limits[{name}]",
                Fault.REQUIRED,
                f"requests asks for {quote(requests[name])} but limits does not: "
                "extended resources are asked for in limits, write it there",
                "requests-without-limits",
            )
        ]
    count, errors = _read_count(limits[name], name, path, resource)
    if name in requests and not (count is not None and _same(requests, limits, name)):
        asked = parse_quantity(requests[name])
        if asked is None or (count is not None and asked != count):
            errors.append(
                FieldError(
                    f"{path}.requests[{name}]",
                    Fault.INVALID,
                    f"must be equal to limits ({quote(limits[name])}), extended resources "
                    "cannot be overcommitted: leave requests out",
                    "requests-differ",
                    quote(requests[name]),
                )
            )
    return count, errors


def _same(requests: Mapping[str, Any], limits: Mapping[str, Any], name: str) -> bool:
    """Return whether both are written alike, as the API server writes what is left out."""
    asked, limit = requests[name], limits[name]
    return isinstance(asked, str) and isinstance(limit, str) and asked == limit


def _read_count(
    value: object, name: str, path: str, resource: Resource
) -> tuple[int | None, list[FieldError]]:
    number = parse_quantity(value)
    if number is None:
        detail, rule = 'must be a whole number such as "50"', "not-a-number"
    elif number.denominator != 1:
        detail, rule = "must be a whole number, it cannot be divided further", "not-whole"
    elif number < 0:
        detail, rule = "must not be negative: leave it out to ask for none", "negative"
    elif resource is Resource.MEMORY and _are_bytes(value, number):
        blocks = max(1, round(number / _USUAL_BLOCK))
        detail = f"is counted in blocks, not in bytes: with blocks of 256 MiB write {blocks}"
        rule = "memory-in-bytes"
    elif number > LARGEST_COUNT:
        detail, rule = f"must be at most {LARGEST_COUNT}", "too-large"
    else:
        return int(number), []
    where = f"{path}.limits[{name}]"
    return None, [FieldError(where, Fault.INVALID, detail, rule, quote(value))]


def _are_bytes(value: object, number: Fraction | int) -> bool:
    """Return whether a count of memory blocks was meant as bytes: so many, or with a binary unit.

    Decimal units are no sign: the API server writes ``8k`` for 8000.
    """
    return _MOST_BLOCKS < number < 2**63 or (isinstance(value, str) and value.endswith("i"))


def _check_cores(
    cores: int, limits: Mapping[str, Any], names: Names, path: str
) -> Iterator[FieldError]:
    """Apply the rule that more than one card is whole cards."""
    if cores > CORES_PER_CARD and cores % CORES_PER_CARD:
        below = cores - cores % CORES_PER_CARD
        above = below + CORES_PER_CARD
        yield FieldError(
            f"{path}.limits[{names.core}]",
            Fault.INVALID,
            f"more than one card must be a multiple of {CORES_PER_CARD} "
            f"({CORES_PER_CARD} is one whole card): "
            f"ask for {below}" + (f" or {above}" if above <= LARGEST_COUNT else ""),
            "not-whole-cards",
            quote(limits[names.core]),
        )


def _check_together(demand: Demand, names: Names, path: str) -> Iterator[FieldError]:
    """Apply the rules between the two counts of one container."""
    core_path, memory_path = f"{path}.limits[{names.core}]", f"{path}.limits[{names.memory}]"
    if demand.is_share and not demand.memory:
        yield FieldError(
            memory_path,
            Fault.REQUIRED,
            f"a shared card needs memory: {demand.cores} of {CORES_PER_CARD} cores share a "
            "card with others, say how many memory blocks to take, at least 1",
            "share-without-memory",
        )
    if demand.memory and not demand.cores:
        yield FieldError(
            core_path,
            Fault.REQUIRED,
            f"memory ({demand.memory}) without cores: add 1 to 99 cores for a share of one "
            f"card, or a multiple of {CORES_PER_CARD} for whole cards",
            "memory-without-cores",
        )
