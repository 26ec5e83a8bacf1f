"""Counts that the authors of other systems' pods wrote into limits and requests."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import LARGEST_COUNT
from contract.errors import FieldError, FieldFault, quote
from contract.quantity import parse_quantity
from contract.requests import listings_of, walk_containers
from webhook.admission.dialects.reading import CardRequest, ContainerReading, Field

_MIB = 2**20


_FIELDS: tuple[Field, ...] = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class FoundCounts:
    """The counts of one container that has resources of the other system.

    Attributes:
        field: list of the pod's spec that has the container.
        index: its index in that list.
        container: the container as decoded JSON.
        path: path of its ``resources``.
        counts: resource to its count, 0 or more; without those that cannot be read.
        names: the other system's resources that it has, also unreadable ones.
        errors: what cannot be read.
    """

    field: Field
    index: int
    container: Mapping[str, Any]
    path: str
    counts: Mapping[str, int]
    names: tuple[str, ...]
    errors: tuple[FieldError, ...]

    def get(self, name: str) -> int:
        """Return a count; 0 if it is missing or cannot be read."""
        return self.counts.get(name, 0)

    def refuse(self, name: str, detail: str, rule: str) -> FieldError:
        """Return the error of a count that can be read, but not be kept."""
        value = quote(str(self.counts[name]))
        where = f"{self.path}.limits[{name}]"
        return FieldError(where, FieldFault.INVALID, detail, rule, value)

    def make_reading(self, request: CardRequest | None) -> ContainerReading:
        """Return what the container requests, if all counts could be read."""
        request = None if self.errors else request
        return ContainerReading(self.field, self.index, request, self.names)


def walk_counts(
    pod: Mapping[str, Any],
    is_theirs: Callable[[str], bool],
    path: str,
    *,
    in_mib: Collection[str] = (),
) -> Iterator[FoundCounts]:
    """Read the counts of all containers that have any, without raising.

    As for our own resources, requests must be equal to limits: the API server denies other pods
    with extended resources.

    Args:
        pod: a pod or a template as decoded JSON, possibly hostile.
        is_theirs: returns whether a resource is the other system's.
        path: prefix of ``spec`` in paths.
        in_mib: resources that count MiB.
    """
    for field in _FIELDS:
        for _, index, container in walk_containers(pod.get("spec"), (field,)):
            limits, requests = listings_of(container)
            names = tuple(each for each in {**limits, **requests} if is_theirs(each))
            if not names:
                continue
            where = f"{path}spec.{field}[{index}].resources"
            counts: dict[str, int] = {}
            errors: list[FieldError] = []
            for name in names:
                wrong = tuple(_find_errors(name, limits, requests, where, in_mib))
                errors += wrong
                if not wrong:
                    counts[name] = int(parse_quantity(limits[name]) or 0)
            yield FoundCounts(field, index, container, where, counts, names, tuple(errors))


def _find_errors(
    name: str,
    limits: Mapping[str, Any],
    requests: Mapping[str, Any],
    path: str,
    in_mib: Collection[str],
) -> Iterator[FieldError]:
    if name not in limits:
        yield FieldError(
            f"{path}.limits[{name}]",
            FieldFault.REQUIRED,
            f"requests has {quote(requests[name])}, but limits does not have it: extended "
            "resources must be in limits",
            "requests-without-limits",
        )
        return
    value = limits[name]
    if found := _find_rule(value, name in in_mib):
        yield FieldError(f"{path}.limits[{name}]", FieldFault.INVALID, *found, quote(value))
    elif name in requests and parse_quantity(requests[name]) != parse_quantity(value):
        yield FieldError(
            f"{path}.requests[{name}]",
            FieldFault.INVALID,
            f"must be equal to limits ({quote(value)}): leave it out of requests",
            "requests-differ",
            quote(requests[name]),
        )


def _find_rule(value: object, in_mib: bool) -> tuple[str, str] | None:
    """Return the rule that a count breaks and its name; ``None`` if it breaks none."""
    number = parse_quantity(value)
    if number is None:
        return 'must be a whole number such as "1"', "not-a-number"
    if in_mib and (number > LARGEST_COUNT or (isinstance(value, str) and value.endswith("i"))):
        mib = max(1, round(number / _MIB))
        return f"is counted in MiB, not in bytes: write {mib}", "memory-in-bytes"
    if number.denominator != 1:
        return "must be a whole number", "not-whole"
    if number < 0:
        return "must not be negative: leave it out to request none", "negative"
    if number > LARGEST_COUNT:
        return f"must be at most {LARGEST_COUNT}", "too-large"
    return None
