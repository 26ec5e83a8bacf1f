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
from contract.requests import annotations_of
from contract.wishes import POLICIES
from webhook.admission.dialects.annotation_reader import AnnotationReader
from webhook.admission.dialects.counts import CountedContainer, count_containers, read_containers
from webhook.admission.dialects.reading import CardRequest, Reading, find_variable

_COUNT = "nvidia.com/gpu"
_MEMORY = "nvidia.com/gpumem"
_PERCENT = "nvidia.com/gpumem-percentage"
_CORES = "nvidia.com/gpucores"
_PRIORITY = "nvidia.com/priority"
_RESOURCES = (_COUNT, _MEMORY, _PERCENT, _CORES, _PRIORITY)

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
    """Read what a pod requests of HAMi; ``None`` if nothing."""
    found = tuple(count_containers(pod, _RESOURCES, path=path))
    if not found:
        return None
    annotations = AnnotationReader(annotations_of(pod), path)
    containers, errors = read_containers(found, _read_request, _find_errors)
    _read_annotations(annotations, [each.request for each in containers if each.request])
    return Reading(
        containers=containers,
        wishes=annotations.wishes,
        annotations=tuple(annotations.read),
        errors=(*errors, *annotations.errors),
        warnings=(*_about_containers(pod, found), *annotations.warnings),
        schedulers=SCHEDULERS,
    )


def _read_request(container: CountedContainer, counts: Mapping[str, int]) -> CardRequest | None:
    named = [each for each in container.resources if each != _PRIORITY]
    cards = counts[_COUNT] if not named or _COUNT in named else 1
    if not cards:
        return None
    cores = min(counts[_CORES], CORES_PER_CARD) or None
    if counts[_MEMORY]:
        return CardRequest(cards, cores, memory=counts[_MEMORY])
    return CardRequest(cards, cores, percent=counts[_PERCENT] or None)


def _find_errors(container: CountedContainer) -> Iterator[FieldError]:
    if container.counts and container.counts[_PERCENT] > 100:
        yield container.refuse(_PERCENT, "must be a percentage, at most 100", "not-a-percentage")


def _about_containers(pod: Mapping[str, Any], found: Iterable[CountedContainer]) -> Iterator[str]:
    for each in found:
        if _PRIORITY in each.resources:
            yield f"container {each.name}: {_PRIORITY} is not kept: cards have no priorities"
    for name, value in find_variable(pod, _NO_LIMITS):
        if value in _TRUE:
            yield f"container {name}: {_NO_LIMITS} is not kept: shares have limits"


def _read_annotations(annotations: AnnotationReader, requests: Iterable[CardRequest]) -> None:
    for key in _LISTS:
        annotations.add_wish(key, annotations.get(key))
    for key in TYPES:
        annotations.add_wish(key, strip_vendor(annotations.get(key)))
    whole = all(each.is_whole for each in requests)
    annotations.add_policy(_CARD_POLICY, POLICIES, (*_ALWAYS, _IDLE) if whole else _ALWAYS)
    annotations.add_policy(_NODE_POLICY, POLICIES)
    if annotations.get(_NUMA) in _TRUE and any(each.cards > 1 for each in requests):
        annotations.wishes["gpu-link"] = "numa"
    if (mode := annotations.get(_MODE)) and _LIBRARY not in mode:
        annotations.refuse(_MODE, NOT_THE_LIBRARY, "not-hami-core")
    if annotations.get(_WEIGHTS):
        annotations.warnings.append(f"{_WEIGHTS} is not kept")
    for key in (_MEMORY, _PERCENT, _CORES):  # its issue 2862
        if annotations.get(key):
            annotations.warnings.append(f"annotation {key} is not read, as in HAMi: write limits")


def strip_vendor(types: str) -> str:
    """Return a list of card types without HAMi's ``NVIDIA-`` before names of models.

    Its device plugin puts this before names that do not begin with ``NVIDIA`` (``register.go``),
    and its annotations of nodes have these names.
    """
    entries = (each.strip() for each in types.split(","))
    return ",".join(
        each[len(_VENDOR) :] if each.lower().startswith(_VENDOR) else each for each in entries
    )
