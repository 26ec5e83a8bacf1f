"""Reads the requests of a pod's containers from its spec, and finds all errors in them.

Counts are read from ``limits``: Kubernetes makes ``requests`` equal for extended
resources (``ValidateResourceRequirements``), and the kubelet loops over ``limits``
when it allocates devices. A limit of 0 counts as absent: the kubelet makes no call for it, and
charts write it for a container without a GPU.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, islice
from math import ceil
from typing import Any, NamedTuple

from contract.demand import (
    CORES_PER_CARD,
    LARGEST_COUNT,
    ContainerDemand,
    ContainerKind,
    Demand,
    PodDemand,
)
from contract.errors import FieldError, quote
from contract.names import Names
from contract.quantity import as_written, parse_quantity
from contract.resource import Resource
from contract.reusable import find_leftover_conflict
from contract.text import format_count

_MOST_BLOCKS = 2**24
"""More memory than any container gets: 16 TiB in blocks of 1 MiB, the smallest possible."""

USUAL_BLOCK = 2**28
"""Bytes of a memory block: gpu-manager's, and the agent's unless ``--memory-block`` is set."""

_GIB = 2**30
MOST_CARDS = 16
"""Cards of the largest nodes: a share is divided over so many at most, and so few cores of a share
may have been meant as cards."""

LONGEST_DIVIDED = 53
"""Most characters of a container's name for its annotation ``gpu-cards-<container>``: Kubernetes
allows 63 after the slash."""

_MOST_ANNOTATIONS = 32
"""Most errors in annotations of one pod: a hostile one may have thousands."""


# dict comes first: it is the usual case, and isinstance of an abstract class is slow.
_MAPPINGS = (dict, Mapping)


def asks_for_gpus(spec: object, names: Names) -> bool:
    """Return whether any container of *spec* requests one of our resources, validly or not."""
    return any(_requests_gpus(each, names) for *_, each in walk_containers(spec))


def read_pod_demand(
    pod: Mapping[str, Any], names: Names, *, path: str = ""
) -> tuple[PodDemand, tuple[FieldError, ...]]:
    """Read all requests that can be read and find all errors, without raising.

    Returns:
        The requests whose counts can be read, also those that break a rule (such as 150 cores),
        and all errors in field order.
    """
    found: list[ContainerDemand] = []
    errors: dict[str, list[FieldError]] = {}  # by container, in their order
    splits, used = _find_splits(pod, names), set[str]()
    for field, index, container in walk_containers(pod.get("spec")):
        if not _requests_gpus(container, names):
            continue
        where, name = f"{path}spec.{field}[{index}].resources", _name(container)
        key = names.gpu_cards_of(name)
        split = _Split(f"{path}metadata.annotations[{key}]", splits.get(key))
        used.add(key)
        demand, errors[where] = _read_container(container, names, where, split)
        if any(each.count_in(demand) for each in Resource):
            found.append(ContainerDemand(name, _kind(field, container), index, demand))
    unused = splits.keys() - used
    if unused and found:
        errors["metadata"] = list(_find_unused_splits(unused, splits, found, names, path))
    if conflict := find_leftover_conflict(found):
        conflicting, rule, detail = conflict
        field = "containers" if conflicting.kind is ContainerKind.MAIN else "initContainers"
        where = f"{path}spec.{field}[{conflicting.index}].resources"
        limit, value = f"{where}.limits[{names.core}]", str(conflicting.demand.cores)
        errors[where].append(FieldError(limit, detail, rule, value))
    return PodDemand(tuple(found)), tuple(chain.from_iterable(errors.values()))


def walk_containers(
    spec: object, fields: Sequence[str] = ("initContainers", "containers")
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Walk the containers in the order in which the kubelet admits them: the init list first.

    Yields:
        The field, the index in it, and the container. Ephemeral containers, which cannot request
        anything, are left out unless *fields* names them.
    """
    if not isinstance(spec, _MAPPINGS):
        return
    for field in fields:
        listed = spec.get(field)
        for index, container in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(container, _MAPPINGS):
                yield field, index, container


def _kind(field: str, container: Mapping[str, Any]) -> ContainerKind:
    if field != "initContainers":
        return ContainerKind.MAIN
    restartable = container.get("restartPolicy") == "Always"
    return ContainerKind.SIDECAR if restartable else ContainerKind.INIT


def _requests_gpus(container: Mapping[str, Any], names: Names) -> bool:
    """Return whether limits or requests of a container have one of our resources, other than 0."""
    if not isinstance(container.get("resources"), _MAPPINGS):
        return False
    resources = names.resources
    return any(
        name in listing and parse_quantity(listing[name]) != 0
        for listing in listings_of(container)
        for name in resources
    )


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the annotations of a pod or a template; empty if they are not a mapping."""
    return keys_of(pod, "annotations")


def keys_of(obj: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the annotations or labels of an object; empty if they are not a mapping."""
    metadata = obj.get("metadata")
    found = metadata.get(field) if isinstance(metadata, _MAPPINGS) else None
    return found if isinstance(found, _MAPPINGS) else {}


def listings_of(container: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a container's limits and requests; a value that is not a mapping counts as empty."""
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
    container: Mapping[str, Any], names: Names, path: str, split: "_Split"
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
        elif resource is Resource.CORE and split.text is None:
            errors += _check_cores(count, container, names, path)
        counts.append(max(count or 0, 0))
    demand = Demand(*counts)
    if readable and split.text is not None:
        cards, error = split.read(demand)
        demand = replace(demand, split=cards)
        errors += [error] if error else []
    if readable:  # otherwise the unreadable count has its own error
        errors += _check_together(demand, names, path)
    return demand, errors


def _read_resource(
    name: str, limits: Mapping[str, Any], requests: Mapping[str, Any], path: str, resource: Resource
) -> tuple[int | None, list[FieldError]]:
    """Read one count: 0 if it is absent or 0, ``None`` if it is unreadable."""
    if name not in limits:
        if name not in requests:
            return 0, []
        return None, [
            FieldError(
                f"{path}.limits[{name}]",
                f"requests has {quote(as_written(requests[name]))}, but limits does not have it: "
                "extended resources must be in limits",
                "requests-without-limits",
            )
        ]
    count, errors = _read_count(limits[name], name, path, resource)
    if name in requests and not (count is not None and _same_text(requests, limits, name)):
        requested = parse_quantity(requests[name])
        if requested is None or (count is not None and requested != count):
            errors.append(
                FieldError(
                    f"{path}.requests[{name}]",
                    f"must be equal to limits ({quote(as_written(limits[name]))}), "
                    "extended resources cannot be overcommitted: leave it out of requests",
                    "requests-differ",
                    quote(as_written(requests[name])),
                )
            )
    return count, errors


def _same_text(requests: Mapping[str, Any], limits: Mapping[str, Any], name: str) -> bool:
    """Return whether request and limit are equal text: the API server copies absent requests."""
    request, limit = requests[name], limits[name]
    return isinstance(request, str) and isinstance(limit, str) and request == limit


def _read_count(
    value: object, name: str, path: str, resource: Resource
) -> tuple[int | None, list[FieldError]]:
    number = parse_quantity(value)
    if number is None:
        detail, rule = 'must be a whole number such as "50"', "not-a-number"
    elif number.denominator != 1:
        detail, rule = "must be a whole number, it cannot be divided further", "not-whole"
        detail += _suggest_whole(number, resource)
    elif number < 0:
        detail, rule = "must not be negative: leave it out to request none", "negative"
    elif resource is Resource.MEMORY and _are_bytes(value, number):
        blocks = max(1, round(number / USUAL_BLOCK))
        detail = f"is counted in blocks, not in bytes: with blocks of 256 MiB write {blocks}"
        rule = "memory-in-bytes"
    elif number > LARGEST_COUNT:
        detail, rule = f"must be at most {LARGEST_COUNT}", "too-large"
    else:
        return int(number), []
    where = f"{path}.limits[{name}]"
    return None, [FieldError(where, detail, rule, quote(value))]


def _suggest_whole(number: Fraction | int, resource: Resource) -> str:
    """Return what to write for a part of a card, or for GiB; empty if neither can be meant."""
    if not 0 < number < _MOST_BLOCKS:
        return ""
    if resource is Resource.MEMORY:
        blocks = ceil(number * _GIB / USUAL_BLOCK)
        return f": with blocks of 256 MiB, {float(number):g} GiB are {blocks}"
    if Fraction(1, CORES_PER_CARD) <= number < 1:
        return f": {float(number):g} of a card is {ceil(number * CORES_PER_CARD)}"
    return f": {CORES_PER_CARD} is one card"


def _are_bytes(value: object, number: Fraction | int) -> bool:
    """Return whether a count of memory blocks was meant as bytes: too large, or with a binary unit.

    Decimal units are no evidence: the API server writes ``8k`` for 8000.
    """
    return _MOST_BLOCKS < number < 2**63 or (isinstance(value, str) and value.endswith("i"))


def _check_cores(
    cores: int, container: Mapping[str, Any], names: Names, path: str
) -> Iterator[FieldError]:
    """Check that more than one card means whole cards."""
    if cores > CORES_PER_CARD and cores % CORES_PER_CARD:
        below = cores - cores % CORES_PER_CARD
        above = below + CORES_PER_CARD
        yield FieldError(
            f"{path}.limits[{names.core}]",
            f"more than one card must be a multiple of {CORES_PER_CARD} "
            f"({CORES_PER_CARD} is one whole card): request {below}"
            + (f" or {above}" if above <= LARGEST_COUNT else "")
            + _suggest_split(cores, _name(container), names),
            "not-whole-cards",
            quote(listings_of(container)[0][names.core]),
        )


def has_cards_annotation(name: object) -> bool:
    """Return whether Kubernetes allows ``gpu-cards-<container>`` for a container of this name."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_DIVIDED


def _suggest_split(cores: int, name: str, names: Names) -> str:
    """Return how to get shares of several cards instead; empty if *cores* cannot be divided so."""
    fewest = cores // CORES_PER_CARD + 1
    cards = next((each for each in range(fewest, MOST_CARDS + 1) if cores % each == 0), 0)
    if not cards or not has_cards_annotation(name):
        return ""
    annotation = f'{names.gpu_cards_of(name)}: "{cards}"'
    return f", or annotate {annotation} for {cores // cards} of each of {cards} cards"


class _Split(NamedTuple):
    """An annotation that divides a share over several cards.

    Attributes:
        path: the annotation's.
        text: its value; ``None`` if the pod does not have it.
    """

    path: str
    text: object

    def read(self, demand: Demand) -> tuple[int, FieldError | None]:
        """Return the number of cards, and the error if it breaks a rule.

        The number is 1 if it cannot be read, or if whole cards were meant. If it only does not
        divide the request, it is returned, so that nobody places the whole request on one card.
        """
        cards = int(self.text) if isinstance(self.text, str) and _SPLIT.match(self.text) else 0
        if not 1 <= cards <= MOST_CARDS:
            quoted = "" if isinstance(self.text, str) else ", in quotes"
            detail = f"must be a whole number from 1 to {MOST_CARDS}{quoted}"
            return 1, self._error(detail, "not-a-split")
        if demand.cores >= cards * CORES_PER_CARD:
            each = demand.cores // cards
            return 1, self._error(
                f"divides a share, which has 1 to {CORES_PER_CARD - 1} cores of each card, but "
                f"{demand.cores} cores over {format_count(cards, 'card')} are {each} of each: "
                f"request fewer cores, or leave this out for whole cards",
                "split-of-whole-cards",
            )
        for resource in Resource:
            count = resource.count_in(demand)
            if count % cards:
                below = count - count % cards
                above = below + cards
                allowed = [below] if below else []
                if resource is Resource.MEMORY or above < cards * CORES_PER_CARD:
                    allowed.append(above)
                return cards, self._error(
                    f"{resource.format_count(count)} cannot be divided evenly over {cards} cards: "
                    f"request {' or '.join(map(str, allowed))}",
                    "split-uneven",
                )
        return cards, None

    def _error(self, detail: str, rule: str) -> FieldError:
        return FieldError(self.path, detail, rule, quote(self.text))


_SPLIT = re.compile(r"[0-9]{1,9}\Z", re.ASCII)


def _find_splits(pod: Mapping[str, Any], names: Names) -> dict[str, object]:
    """Return the annotations that divide shares, by name.

    An empty value counts as absent: charts write it if their user sets none.
    """
    prefix = names.gpu_cards_prefix
    return {
        key: value
        for key, value in annotations_of(pod).items()
        if isinstance(key, str) and key.startswith(prefix) and value != ""
    }


def _find_unused_splits(
    unused: Iterable[str],
    splits: Mapping[str, object],
    found: Sequence[ContainerDemand],
    names: Names,
    path: str,
) -> Iterator[FieldError]:
    """Yield an error for each annotation that names no container with a request."""
    with_gpus = ", ".join(quote(each.name) for each in found[:_MOST_ANNOTATIONS])
    for key in islice(sorted(unused), _MOST_ANNOTATIONS):
        name = key.removeprefix(names.gpu_cards_prefix)
        yield FieldError(
            f"{path}metadata.annotations[{key}]",
            f"the pod has no container {quote(name)} that requests GPUs, only {with_gpus}",
            "split-without-container",
            quote(splits[key]),
        )


def _check_together(demand: Demand, names: Names, path: str) -> Iterator[FieldError]:
    """Check the two counts of one container against each other."""
    core_path, memory_path = f"{path}.limits[{names.core}]", f"{path}.limits[{names.memory}]"
    if demand.is_share and not demand.memory:
        several = demand.split > 1
        blocks = format_count(demand.split, "memory block")
        beside = f"{blocks} beside {demand.cores} of {demand.split * CORES_PER_CARD} cores"
        detail = f"a share of a card needs memory: request at least {beside}"
        if several:
            detail = f"a share of {demand.split} cards needs memory: request at least {beside}"
        if demand.cores <= MOST_CARDS and not several:
            cards = "1 whole card" if demand.cores == 1 else f"{demand.cores} whole cards"
            detail += f"; if you mean {cards}, write {demand.cores * CORES_PER_CARD} cores"
        yield FieldError(memory_path, detail, "share-without-memory")
    if demand.memory and not demand.cores:
        yield FieldError(
            core_path,
            f"memory ({demand.memory}) without cores: add 1 to 99 cores for a share of one card, "
            f"or a multiple of {CORES_PER_CARD} for whole cards",
            "memory-without-cores",
        )
