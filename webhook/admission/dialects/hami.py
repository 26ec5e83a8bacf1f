"""HAMi: ``nvidia.com/gpu`` N, and memory and cores of *each* of these cards.

Read from its code of 2026-08-21 (``pkg/device/nvidia/device.go``), with the names and defaults of
its chart (``defaultMemory: 0``, ``defaultCores: 0``, ``defaultGPUNum: 1``, ``memoryFactor: 1``):

- Memory or cores without a count mean one card. A count of 0 requests nothing.
- Without memory, or with 0, a container has all memory of its cards; ``gpumem`` precedes
  ``gpumem-percentage``.
- Without cores, or with 0, computing is neither reserved nor limited. More than 100 cores are 100,
  and 100 are the whole card: nobody else may use it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError
from contract.wishes import POLICIES
from webhook.admission.annotations import annotations_of
from webhook.admission.decision import short
from webhook.admission.dialects.counts import FoundCounts, walk_counts
from webhook.admission.dialects.reading import CardRequest, Reading
from webhook.admission.dialects.annotation_reader import AnnotationReader

_COUNT = "nvidia.com/gpu"
_MEMORY = "nvidia.com/gpumem"
_PERCENT = "nvidia.com/gpumem-percentage"
_CORES = "nvidia.com/gpucores"
_PRIORITY = "nvidia.com/priority"
_RESOURCES = frozenset((_COUNT, _MEMORY, _PERCENT, _CORES, _PRIORITY))

SCHEDULERS = ("hami-scheduler", "4pd-scheduler")
"""Its scheduler's name in the chart, and the one before the project was renamed."""

_LISTS = ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid")
TYPES = ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype")
_CARD_POLICY, _NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
_NUMA, _MODE = "nvidia.com/numa-bind", "nvidia.com/vgpu-mode"
_WEIGHTS = "hami.io/device-scoring-weights"

_ALWAYS = ("topology-aware", "numa")
"""Policies that our choice of several cards follows anyway."""
_IDLE = "mutex"
"""The policy by which only idle cards are chosen, as whole cards are."""

_TRUE = ("1", "t", "T", "true", "TRUE", "True")  # Go's strconv.ParseBool
_VENDOR = "nvidia-"
_LIBRARY = "hami-core"
NOT_THE_LIBRARY = "must be hami-core: cards are not divided by MIG or MPS here"
_NO_LIMITS = "CUDA_DISABLE_CONTROL"


def read_hami(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read a pod, or a template, that was written for HAMi.

    Args:
        pod: as decoded JSON, possibly hostile.
        path: prefix of ``metadata`` and ``spec`` in paths.

    Returns:
        What its author wrote; ``None`` if no container has one of HAMi's resources.
    """
    found = tuple(walk_counts(pod, _RESOURCES.__contains__, path, in_mib=(_MEMORY,)))
    if not found:
        return None
    requests = [_read_request(each) for each in found]
    annotations = AnnotationReader(annotations_of(pod), path)
    _read_annotations(annotations, list(filter(None, requests)))
    return Reading(
        containers=tuple(each.make_reading(request) for each, request in zip(found, requests, strict=True)),
        wishes=annotations.wishes,
        annotations=tuple(annotations.read),
        errors=(*(error for each in found for error in _find_errors(each)), *annotations.errors),
        warnings=(*(line for each in found for line in _warn(each)), *annotations.warnings),
        schedulers=SCHEDULERS,
    )


def _read_request(found: FoundCounts) -> CardRequest | None:
    cards = found.get(_COUNT)
    if _COUNT not in found.names and found.counts.keys() - {_PRIORITY}:
        cards = 1
    if not cards:
        return None
    cores = min(found.get(_CORES), CORES_PER_CARD) or None
    if memory := found.get(_MEMORY):
        return CardRequest(cards, cores, memory=memory)
    return CardRequest(cards, cores, percent=found.get(_PERCENT) or None)


def _find_errors(found: FoundCounts) -> Iterator[FieldError]:
    yield from found.errors
    if found.get(_PERCENT) > 100:
        yield found.refuse(_PERCENT, "must be a percentage, at most 100", "not-a-percentage")


def _warn(found: FoundCounts) -> Iterator[str]:
    name = found.container.get("name")
    where = f"container {short(name)}" if isinstance(name, str) else "container"
    if _PRIORITY in found.names:
        yield f"{where}: {_PRIORITY} is not kept, there are no priorities on a card"
    if _is_unlimited(found.container.get("env")):
        yield f"{where}: {_NO_LIMITS} is not kept, shares have limits"


def _is_unlimited(env: object) -> bool:
    return any(
        isinstance(each, dict) and each.get("name") == _NO_LIMITS and each.get("value") in _TRUE
        for each in (env if isinstance(env, list) else ())
    )


def _read_annotations(annotations: AnnotationReader, requests: Iterable[CardRequest]) -> None:
    for key in _LISTS:
        annotations.add_wish(key, annotations.get(key))
    for key in TYPES:
        annotations.add_wish(key, strip_vendor(annotations.get(key)))
    whole = all(each.cores == CORES_PER_CARD for each in requests)
    annotations.add_policy(_CARD_POLICY, POLICIES, (*_ALWAYS, _IDLE) if whole else _ALWAYS)
    annotations.add_policy(_NODE_POLICY, POLICIES)
    if annotations.get(_NUMA) in _TRUE and any(each.cards > 1 for each in requests):
        annotations.wishes["gpu-link"] = "numa"
    if (mode := annotations.get(_MODE)) and _LIBRARY not in mode:
        annotations.refuse(_MODE, NOT_THE_LIBRARY, "not-hami-core")
    if annotations.get(_WEIGHTS):
        annotations.warnings.append(f"{_WEIGHTS} is not kept")


def strip_vendor(types: str) -> str:
    """Return a list of card types without HAMi's ``NVIDIA-`` before names of models.

    Its device plugin puts this before names that do not begin with ``NVIDIA`` (``register.go``),
    and its annotations of nodes have these names.
    """
    entries = (each.strip() for each in types.split(","))
    return ",".join(
        each[len(_VENDOR) :] if each.lower().startswith(_VENDOR) else each for each in entries
    )
