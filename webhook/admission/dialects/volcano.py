"""Volcano: ``volcano.sh/vgpu-number`` N, and memory and cores of *each* of these cards.

Read from its scheduler's code of 2026-08-20 (``pkg/scheduler/api/devices``: ``util.go``,
``nvidia/vgpu/utils.go``, ``nvidia/gpushare/share.go``), with its default ``gpuMemoryFactor: 1``:

- Memory without a number means one card. Other counts without a number are read by nobody.
- Without memory, or with 0, a container has all memory of its cards; a percentage precedes MiB.
- Without cores, or with 0, computing is neither reserved nor limited. 100 are the whole card, and
  more fit on none.
- The older ``gpu-memory`` is a part of one card, without cores; ``gpu-number`` counts whole cards.

Its scheduler places any pod, so ``schedulerName: volcano`` stays, for gangs and queues.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError
from contract.requests import annotations_of
from webhook.admission.dialects.annotation_reader import AnnotationReader
from webhook.admission.dialects.counts import CountedContainer, count_containers, read_containers
from webhook.admission.dialects.hami import NOT_THE_LIBRARY, TYPES, strip_vendor
from webhook.admission.dialects.reading import CardRequest, Reading

_COUNT = "volcano.sh/vgpu-number"
_MEMORY = "volcano.sh/vgpu-memory"
_PERCENT = "volcano.sh/vgpu-memory-percentage"
_CORES = "volcano.sh/vgpu-cores"
_OLD_MEMORY, _OLD_COUNT = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
_NEW = (_COUNT, _MEMORY, _PERCENT, _CORES)
_OLD = (_OLD_MEMORY, _OLD_COUNT)

_USE_TYPE, _NOUSE_TYPE = TYPES
_LISTS = ("volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
_MODE, _GANG = "volcano.sh/vgpu-mode", "volcano.sh/vgpu-podgroup-policy"


def read_volcano(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read what a pod requests of Volcano's shared GPUs; ``None`` if nothing."""
    found = tuple(count_containers(pod, (*_NEW, *_OLD), path=path))
    if not found:
        return None
    annotations = AnnotationReader(annotations_of(pod), path)
    containers, errors = read_containers(found, _read_request, _find_errors)
    _read_annotations(annotations)
    return Reading(
        containers=containers,
        wishes=annotations.wishes,
        annotations=tuple(annotations.read),
        errors=(*errors, *annotations.errors),
        warnings=tuple(annotations.warnings),
    )


def _read_request(container: CountedContainer, counts: Mapping[str, int]) -> CardRequest | None:
    if counts[_OLD_COUNT]:
        return CardRequest(counts[_OLD_COUNT])
    if counts[_OLD_MEMORY]:
        return CardRequest(1, memory=counts[_OLD_MEMORY])
    memory, percent = counts[_MEMORY], counts[_PERCENT]
    cards = counts[_COUNT] if _COUNT in container.resources else min(memory, 1)
    if not cards:
        return None
    cores = counts[_CORES] or None
    if percent or not memory:
        return CardRequest(cards, cores, percent=percent or None)
    return CardRequest(cards, cores, memory=memory)


def _find_errors(container: CountedContainer) -> Iterator[FieldError]:
    counts = container.counts
    if counts is None:
        return
    new = [each for each in _NEW if counts[each]]
    if new and any(counts[each] for each in _OLD):
        detail = "beside Volcano's older gpu-memory or gpu-number: write only one of both"
        yield container.refuse(new[0], detail, "named-twice")
    if _COUNT not in container.resources and not counts[_MEMORY]:
        for name in new:
            yield container.refuse(name, f"without {_COUNT} it requests no card", "no-card")
    if counts[_CORES] > CORES_PER_CARD:
        yield container.refuse(_CORES, "must be at most 100, a whole card", "not-a-percentage")
    if _PERCENT in container.resources and not 0 < counts[_PERCENT] <= 100:
        yield container.refuse(_PERCENT, "must be a percentage, 1 to 100", "not-a-percentage")


def _read_annotations(annotations: AnnotationReader) -> None:
    # A list of types to use precedes the list of others, which the scheduler does not read then.
    use, nouse = (strip_vendor(annotations.get(key)) for key in (_USE_TYPE, _NOUSE_TYPE))
    annotations.add_wish(_USE_TYPE, use)
    annotations.add_wish(_NOUSE_TYPE, "" if use else nouse)
    for key in _LISTS:
        annotations.add_wish(key, annotations.get(key))
    if annotations.get(_MODE) not in ("", "hami-core"):
        annotations.refuse(_MODE, NOT_THE_LIBRARY, "not-hami-core")
    if annotations.get(_GANG):
        annotations.warnings.append(f"{_GANG} is not kept")
