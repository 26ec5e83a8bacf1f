"""Counts of another system's resources in a container's limits and requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.demand import LARGEST_COUNT
from contract.errors import FieldError, quote
from contract.quantity import as_written, parse_quantity
from contract.requests import listings_of, walk_containers
from webhook.admission.decision import short
from webhook.admission.dialects.reading import CardRequest, ContainerReading, Field


@dataclass(frozen=True, slots=True)
class CountedContainer:
    """A container that names resources of another system.

    Attributes:
        field: list of the pod's spec that has it.
        index: its index in that list.
        name: as warnings show it.
        path: path of its limits.
        resources: the names that its limits or requests have.
        counts: the count of each name that was looked for, 0 if it is absent (names of a prefix
            are left out then); ``None`` if one cannot be read.
        errors: why not.
    """

    field: Field
    index: int
    name: str
    path: str
    resources: tuple[str, ...]
    counts: Mapping[str, int] | None
    errors: tuple[FieldError, ...]

    def refuse(self, name: str, detail: str, rule: str) -> FieldError:
        """Return the error of a count that can be read, but not be kept."""
        value = quote(str((self.counts or {}).get(name)))
        return FieldError(f"{self.path}[{name}]", detail, rule, value)


def count_containers(
    pod: Mapping[str, Any], names: Sequence[str], *, path: str, prefix: str | None = None
) -> Iterator[CountedContainer]:
    """Walk the containers that name any of these resources, in the kubelet's order of admission.

    The API server makes requests equal to limits (``ValidateResourceRequirements``), and demands
    whole numbers. It does so after webhooks, and the translation removes both: so this looks, too.

    Names that begin with *prefix* are looked for, too.
    """
    for field, index, container in walk_containers(pod.get("spec")):
        if not container.get("resources"):  # first, because a pod may have thousands
            continue
        limits, requests = listings_of(container)
        present = tuple(each for each in names if each in limits or each in requests)
        if prefix is not None:
            present += tuple(each for each in {**limits, **requests} if each.startswith(prefix))
        if not present:
            continue
        where = f"{path}spec.{field}[{index}].resources"
        counts = dict.fromkeys((*names, *present), 0)
        errors = []
        for name in present:
            read = _read_count(limits, requests, name, where)
            if isinstance(read, FieldError):
                errors.append(read)
            else:
                counts[name] = read
        yield CountedContainer(
            "containers" if field == "containers" else "initContainers",
            index,
            short(str(container.get("name"))),
            f"{where}.limits",
            present,
            None if errors else counts,
            tuple(errors),
        )


def read_containers(
    found: Iterable[CountedContainer],
    read: Callable[[CountedContainer, Mapping[str, int]], CardRequest | None],
    find_errors: Callable[[CountedContainer], Iterable[FieldError]],
) -> tuple[tuple[ContainerReading, ...], tuple[FieldError, ...]]:
    """Read containers one by one; those with errors have no request.

    *read* returns what a container requests, by its counts, *find_errors* what is wrong with counts
    that can be read.
    """
    containers: list[ContainerReading] = []
    errors: list[FieldError] = []
    for each in found:
        wrong = (*each.errors, *find_errors(each))
        errors += wrong
        request = None if wrong or each.counts is None else read(each, each.counts)
        containers.append(ContainerReading(each.field, each.index, request, each.resources))
    return tuple(containers), tuple(errors)


def _read_count(
    limits: Mapping[str, Any], requests: Mapping[str, Any], name: str, path: str
) -> int | FieldError:
    listing = "limits" if name in limits else "requests"
    value = limits[name] if name in limits else requests[name]
    number = parse_quantity(value)
    if number is None or number.denominator != 1 or not 0 <= number <= LARGEST_COUNT:
        detail, rule = f"must be a whole number from 0 to {LARGEST_COUNT}", "not-a-count"
        if number is not None and number > LARGEST_COUNT and str(value)[-1:].isalpha():
            detail += ", not bytes"
        return FieldError(f"{path}.{listing}[{name}]", detail, rule, quote(value))
    if name in requests and parse_quantity(requests[name]) != number:
        detail = f"must be equal to limits ({quote(as_written(value))}): leave it out of requests"
        found = quote(as_written(requests[name]))
        return FieldError(f"{path}.requests[{name}]", detail, "requests-differ", found)
    return int(number)
