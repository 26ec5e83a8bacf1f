"""What a pod of another system becomes here: our resources and wishes, as a patch. Pure.

==============================  ===============================================================
the other system's container    becomes
==============================  ===============================================================
all memory, or 100 cores        whole cards: 100 cores for each, no memory
memory M and cores C            C cores and M of each card, which are totals here, and the number of
                                cards in ``gpu-cards-<container>`` if there are several
memory, no cores                1 core of each card. It may use idle ones, as in the other system:
                                ``vcuda-core-limit`` of 100 for vcuda-controller, and for HAMi-core
                                its own variable, which its own webhook would set as well
all memory, fewer than 100      whole cards, with a warning: nobody else could have memory of them
cores
==============================  ===============================================================

Memory is rounded up to whole blocks on each card. A percentage is of the largest card, rounded down
as with ``--default-memory proportional``, so that two halves fit on it.

A scheduler of the other system that can place pods only by that system's resources is taken out:
it would leave the pod pending, or choose a node without looking at its cards.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from contract.demand import CORES_PER_CARD, LARGEST_COUNT
from contract.errors import FieldError, quote
from contract.names import Names
from contract.other_systems import PREFIXES, RESOURCES, Dialect
from contract.quantity import as_written, parse_quantity
from contract.requests import (
    LONGEST_DIVIDED,
    MOST_CARDS,
    annotations_of,
    has_cards_annotation,
    listings_of,
    walk_containers,
)
from contract.text import format_count
from webhook.admission.decision import Operation, short
from webhook.admission.dialects.reading import MOST_MIB, CardRequest, ContainerReading, Reading
from webhook.admission.dialects.registry import read_dialects
from webhook.admission.options import AdmissionOptions
from webhook.admission.patches import remove_value, set_value

_MIB = 2**20
_MOST_MIXED = 8
"""Most errors of our own names beside another system's: a hostile pod may have thousands."""

NO_CORE_LIMIT: Final[Mapping[str, str]] = {
    "name": "GPU_CORE_UTILIZATION_POLICY",
    "value": "DISABLE",
}
"""The variable by which HAMi-core does not limit cores."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A pod, or a template, in our resources and wishes.

    Attributes:
        pod: the object as all further checks see it; the original one if nothing was translated.
        changes: annotation to its new value, or to ``None`` to remove it.
        patch: all other changes, as operations on the original object.
        errors: reasons to deny it; then nothing was translated.
        warnings: what it became, one line for each container, then what was not kept.
    """

    pod: Mapping[str, Any]
    changes: Mapping[str, str | None] = field(default_factory=dict)
    patch: tuple[Operation, ...] = ()
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Amounts:
    """What a container gets.

    Attributes:
        cores: of all its cards together.
        memory: blocks of all its cards together; 0 for whole cards.
        split: number of cards over which a share is divided.
        unlimited: whether it may use all cores that are idle.
    """

    cores: int
    memory: int = 0
    split: int = 1
    unlimited: bool = False


def translate(
    pod: Mapping[str, Any], *, names: Names, options: AdmissionOptions, path: str = ""
) -> Translation:
    """Translate a pod that was written for one of the accepted systems."""
    readings = read_dialects(pod, options.accept, path=path) if options.accept else {}
    if not readings:
        return Translation(pod)
    dialect, reading = next(iter(readings.items()))
    errors = [*_refuse_mixtures(pod, readings, names, path), *reading.errors]
    for each in reading.containers:
        errors += _find_errors(pod, each, options, path)
    if errors:
        return Translation(pod, errors=tuple(errors), warnings=reading.warnings)
    return _apply(pod, dialect, reading, names, options)


def _refuse_mixtures(
    pod: Mapping[str, Any], readings: Mapping[Dialect, Reading], names: Names, path: str
) -> Iterator[FieldError]:
    """Yield an error if requests or wishes are in the names of several systems."""
    (dialect, reading), *others = readings.items()
    beside = f"beside {_first_name(pod, reading, path)[0]} of {dialect}"
    for other, also in others:
        _, where, value = _first_name(pod, also, path)
        detail = f"is of {other}, {beside}: write the names of one system"
        yield FieldError(where, detail, "mixed-systems", value)
    refused = {each.path for each in reading.errors}
    for where, value in islice(_find_unread(pod, readings), _MOST_MIXED):
        if f"{path}{where}" not in refused:
            detail = f"is not read as a name of {dialect}, {beside}: write the names of one system"
            yield FieldError(f"{path}{where}", detail, "mixed-systems", value)
    for where, value in islice(_find_ours(pod, names), _MOST_MIXED):
        detail = f"{beside}: write the names of one system"
        yield FieldError(f"{path}{where}", detail, "mixed-systems", value)


def _find_unread(
    pod: Mapping[str, Any], readings: Mapping[Dialect, Reading]
) -> Iterator[tuple[str, str]]:
    """Yield path and value of requests in names of systems that are not accepted.

    Only those in containers that are translated: no node would have the rest of them.
    """
    read = {name for each in readings.values() for one in each.containers for name in one.resources}
    for each in next(iter(readings.values())).containers:
        container = pod["spec"][each.field][each.index]
        for listing, counts in zip(("limits", "requests"), listings_of(container), strict=True):
            for name, value in counts.items():
                known = name in RESOURCES or name.startswith(PREFIXES)
                if known and name not in read and parse_quantity(value) != 0:
                    where = f"spec.{each.field}[{each.index}].resources.{listing}[{name}]"
                    yield where, quote(as_written(value))


def _find_ours(pod: Mapping[str, Any], names: Names) -> Iterator[tuple[str, str]]:
    """Yield path and value of each request and wish in our names; zeros and empty ones are none."""
    for field_name, index, container in walk_containers(pod.get("spec")):
        limits, requests = listings_of(container)
        for name in names.resources:
            listing = "limits" if name in limits else "requests"  # the API server copies limits
            value = {**requests, **limits}.get(name, 0)
            if parse_quantity(value) != 0:
                where = f"spec.{field_name}[{index}].resources.{listing}[{name}]"
                yield where, quote(as_written(value))
    for key, value in annotations_of(pod).items():
        if value != "" and (key in names.wishes or key.startswith(names.gpu_cards_prefix)):
            yield f"metadata.annotations[{key}]", quote(value)


def _first_name(pod: Mapping[str, Any], reading: Reading, path: str) -> tuple[str, str, str]:
    """Return the first resource or annotation of another system, its path and its value."""
    for each in reading.containers:
        container = pod["spec"][each.field][each.index]
        for listing, counts in zip(("limits", "requests"), listings_of(container), strict=True):
            for name in each.resources:
                if name in counts:
                    where = f"{path}spec.{each.field}[{each.index}].resources.{listing}[{name}]"
                    return name, where, quote(as_written(counts[name]))
    for name in reading.annotations:
        value = quote(annotations_of(pod).get(name))
        return name, f"{path}metadata.annotations[{name}]", value
    return "requests", f"{path}spec", '""'


def _find_errors(
    pod: Mapping[str, Any], reading: ContainerReading, options: AdmissionOptions, path: str
) -> Iterator[FieldError]:
    """Yield what keeps a container's request from being written in our names."""
    request = reading.request
    if request is None:
        return
    where = f"{path}spec.{reading.field}[{reading.index}]"
    whole = request.is_whole
    if request.cards > (most := LARGEST_COUNT // CORES_PER_CARD if whole else MOST_CARDS):
        yield FieldError(
            f"{where}.resources",
            f"must be at most {most}" + ("" if whole else ", for parts of cards"),
            "too-many-cards",
            format_count(request.cards, "card"),
        )
    if whole:
        return
    if (request.memory or 0) >= MOST_MIB:
        yield FieldError(
            f"{where}.resources",
            "is more memory than any card has: it is counted in MiB",
            "memory-beyond-a-card",
            f"{request.memory} MiB",
        )
    if request.memory is None and not options.largest_card:
        yield FieldError(
            f"{where}.resources",
            "a percentage of a card's memory needs the webhook's --largest-card: write MiB",
            "percentage-of-unknown",
            f"{float(request.percent or 0):g}%",
        )
    name = pod["spec"][reading.field][reading.index].get("name")
    if request.cards > 1 and not has_cards_annotation(name):
        yield FieldError(
            f"{where}.name",
            f"must have 1 to {LONGEST_DIVIDED} characters for parts of several cards, because an "
            "annotation has this name",
            "name-too-long",
            quote(name),
        )


def _convert(request: CardRequest, options: AdmissionOptions) -> _Amounts:
    cards, cores = request.cards, request.cores
    if request.is_whole:
        return _Amounts(CORES_PER_CARD * cards)
    if request.memory is not None:
        blocks = -(-request.memory * _MIB // options.memory_block)
    else:
        blocks = max(1, (request.percent or 0) * options.largest_card // 100)
    return _Amounts((cores or 1) * cards, blocks * cards, cards, unlimited=cores is None)


def _apply(
    pod: Mapping[str, Any],
    dialect: Dialect,
    reading: Reading,
    names: Names,
    options: AdmissionOptions,
) -> Translation:
    """Write a reading without errors in our names."""
    converted = [
        (each, None if each.request is None else _convert(each.request, options))
        for each in reading.containers
    ]
    spec, patch = _replace_requests(pod["spec"], converted, names)
    changes: dict[str, str | None] = dict.fromkeys(reading.annotations)
    changes |= _write_wishes(reading, converted, names)
    became, lost = [], list(reading.warnings)
    for each, amounts in converted:
        if each.request is None or amounts is None:
            continue
        name = pod["spec"][each.field][each.index].get("name")
        where = f"container {short(str(name))}"
        became.append(f"{where}: translated from {dialect}: {_describe(amounts)}")
        if amounts.split > 1:
            changes[names.gpu_cards_of(name)] = str(amounts.split)
        if each.request.is_whole and each.request.cores not in (None, CORES_PER_CARD):
            cores = each.request.cores
            lost.append(f"{where}: has all memory, so whole cards instead of {cores} cores of each")
    if len({amounts.unlimited for _, amounts in converted if amounts and amounts.memory}) > 1:
        lost.append("no share of this pod is limited to its cores: vcuda-core-limit is the pod's")
    original = _keep_original(pod, dialect, reading)
    if (scheduler := spec.get("schedulerName")) in reading.schedulers:
        del spec["schedulerName"]
        patch.append(remove_value(("spec", "schedulerName")))
        original["schedulerName"] = scheduler
        lost.append(f"schedulerName {scheduler} is left out: it knows only {dialect}'s resources")
    changes[names.translated_from] = json.dumps(original, separators=(",", ":"))
    return Translation(
        {**pod, **_with_annotations(pod, changes), "spec": spec},
        changes,
        tuple(patch),
        warnings=(*became, *lost),
    )


def _replace_requests(
    given: Mapping[str, Any],
    converted: Sequence[tuple[ContainerReading, _Amounts | None]],
    names: Names,
) -> tuple[dict[str, Any], list[Operation]]:
    """Return a pod's spec with our requests, and the operations that make it."""
    spec = dict(given)
    for field_name in {each.field for each, _ in converted}:
        spec[field_name] = list(spec[field_name])
    patch: list[Operation] = []
    for each, amounts in converted:
        steps = ("spec", each.field, each.index)
        container = spec[each.field][each.index]
        ours = _write_counts(amounts, names)
        changed, operations = _replace_counts(container, each.resources, ours, steps)
        patch += operations
        if amounts and amounts.unlimited:
            changed, operations = _switch_limit_off(changed, steps)
            patch += operations
        spec[each.field][each.index] = changed
    return spec, patch


def _write_wishes(
    reading: Reading, converted: Sequence[tuple[ContainerReading, _Amounts | None]], names: Names
) -> dict[str, str]:
    """Return our wishes: those of the reading, and the one for cores that nobody named."""
    unlimited = any(amounts and amounts.unlimited for _, amounts in converted)
    wishes = {names.core_limit: str(CORES_PER_CARD)} if unlimited else {}
    theirs = reading.wishes or {}
    return wishes | {f"{names.domain}/{wish}": value for wish, value in theirs.items()}


def _write_counts(amounts: _Amounts | None, names: Names) -> dict[str, str]:
    if amounts is None:
        return {}
    memory = {names.memory: str(amounts.memory)} if amounts.memory else {}
    return {names.core: str(amounts.cores), **memory}


def _describe(amounts: _Amounts) -> str:
    parts = [f"vcuda-core {amounts.cores}"]
    parts += [f"vcuda-memory {amounts.memory}"] if amounts.memory else []
    parts += [f"gpu-cards {amounts.split}"] if amounts.split > 1 else []
    return ", ".join(parts)


def _replace_counts(
    container: Mapping[str, Any],
    theirs: Sequence[str],
    ours: Mapping[str, str],
    steps: tuple[str | int, ...],
) -> tuple[dict[str, Any], list[Operation]]:
    """Return a container with our counts in limits, and in requests if it has any."""
    given = container.get("resources")
    changed = dict(given) if isinstance(given, Mapping) else {}
    for listing in ("limits", "requests"):
        counts = changed.get(listing)
        if isinstance(counts, Mapping):
            kept = {name: value for name, value in counts.items() if name not in theirs}
            changed[listing] = {**kept, **ours}
        elif listing == "limits" and ours:
            changed[listing] = ours
    # One operation for each container: a pod may have thousands.
    return {**container, "resources": changed}, [set_value((*steps, "resources"), changed)]


def _switch_limit_off(
    container: dict[str, Any], steps: tuple[str | int, ...]
) -> tuple[dict[str, Any], list[Operation]]:
    """Return a container whose cores HAMi-core does not limit, unless its author chose a policy."""
    env = container.get("env")
    if not isinstance(env, list):
        operation = set_value((*steps, "env"), [NO_CORE_LIMIT])
        return {**container, "env": [NO_CORE_LIMIT]}, [operation]
    name = NO_CORE_LIMIT["name"]
    if any(isinstance(each, Mapping) and each.get("name") == name for each in env):
        return container, []
    operation = set_value((*steps, "env", "-"), NO_CORE_LIMIT)
    return {**container, "env": [*env, NO_CORE_LIMIT]}, [operation]


def _keep_original(pod: Mapping[str, Any], dialect: Dialect, reading: Reading) -> dict[str, Any]:
    """Return what the author wrote: resources by container, and annotations."""
    resources: dict[str, Any] = {}
    for each in reading.containers:
        container = pod["spec"][each.field][each.index]
        limits, requests = listings_of(container)
        written = {**requests, **limits}
        if found := {name: written[name] for name in each.resources if name in written}:
            resources[str(container.get("name"))] = found
    given = annotations_of(pod)
    annotations = {
        key: given[key] if isinstance(given[key], str) else quote(given[key])
        for key in reading.annotations
        if key in given
    }
    return {
        "dialect": dialect,
        **({"resources": resources} if resources else {}),
        **({"annotations": annotations} if annotations else {}),
    }


def _with_annotations(
    pod: Mapping[str, Any], changes: Mapping[str, str | None]
) -> Mapping[str, Any]:
    """Return the changed ``metadata``; nothing if it cannot have annotations, which is an error."""
    metadata = pod.get("metadata")
    given = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict | None) or not isinstance(given, dict | None):
        return {}
    merged = {**(given or {}), **changes}
    kept = {key: value for key, value in merged.items() if value is not None or key not in changes}
    return {"metadata": {**(metadata or {}), "annotations": kept}}
