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
from webhook.admission.annotations import annotations_of
from webhook.admission.dialects.annotation_reader import AnnotationReader
from webhook.admission.dialects.counts import FoundCounts, walk_counts
from webhook.admission.dialects.hami import NOT_THE_LIBRARY, TYPES, strip_vendor
from webhook.admission.dialects.reading import CardRequest, Reading

_COUNT = "volcano.sh/vgpu-number"
_MEMORY = "volcano.sh/vgpu-memory"
_PERCENT = "volcano.sh/vgpu-memory-percentage"
_CORES = "volcano.sh/vgpu-cores"
_OLD_MEMORY, _OLD_COUNT = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
_NEW = frozenset((_COUNT, _MEMORY, _PERCENT, _CORES))
_OLD = frozenset((_OLD_MEMORY, _OLD_COUNT))

_USE_TYPE, _NOUSE_TYPE = TYPES
_LISTS = ("volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid")
_MODE, _GANG = "volcano.sh/vgpu-mode", "volcano.sh/vgpu-podgroup-policy"


def read_volcano(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read a pod, or a template, that was written for Volcano's shared GPUs.

    Args:
        pod: as decoded JSON, possibly hostile.
        path: prefix of ``metadata`` and ``spec`` in paths.

    Returns:
        What its author wrote; ``None`` if no container has one of Volcano's resources.
    """
    in_mib = (_MEMORY, _OLD_MEMORY)
    found = tuple(walk_counts(pod, (_NEW | _OLD).__contains__, path, in_mib=in_mib))
    if not found:
        return None
    annotations = AnnotationReader(annotations_of(pod), path)
    _read_annotations(annotations)
    return Reading(
        containers=tuple(each.make_reading(_read_request(each)) for each in found),
        wishes=annotations.wishes,
        annotations=tuple(annotations.read),
        errors=(*(error for each in found for error in _find_errors(each)), *annotations.errors),
        warnings=tuple(annotations.warnings),
    )


def _read_request(found: FoundCounts) -> CardRequest | None:
    if _OLD.intersection(found.names):
        cards = found.get(_OLD_COUNT)
        memory = found.get(_OLD_MEMORY)
        if cards:
            return CardRequest(cards)
        return CardRequest(1, memory=memory) if memory else None
    memory, percent = found.get(_MEMORY), found.get(_PERCENT)
    cards = found.get(_COUNT) if _COUNT in found.names else int(memory > 0)
    if not cards:
        return None
    cores = found.get(_CORES) or None
    if percent or not memory:
        return CardRequest(cards, cores, percent=percent or None)
    return CardRequest(cards, cores, memory=memory)


def _find_errors(found: FoundCounts) -> Iterator[FieldError]:
    yield from found.errors
    if _OLD.intersection(found.names) and (others := sorted(_NEW.intersection(found.counts))):
        detail = "beside Volcano's older gpu-memory and gpu-number: write only one of both"
        yield found.refuse(others[0], detail, "mixed-systems")
    if _COUNT not in found.names and not found.get(_MEMORY):
        for name in (_CORES, _PERCENT):
            if found.get(name):
                yield found.refuse(name, f"without {_COUNT} it requests no card", "no-card")
    if found.get(_CORES) > CORES_PER_CARD:
        yield found.refuse(_CORES, "no card has more than 100 cores", "not-a-percentage")
    if _PERCENT in found.counts and not 0 < found.get(_PERCENT) <= 100:
        yield found.refuse(_PERCENT, "must be a percentage, 1 to 100", "not-a-percentage")


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
