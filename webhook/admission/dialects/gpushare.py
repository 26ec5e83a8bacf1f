"""gpushare of Alibaba Cloud's container service: parts of a card's memory.

What its code means, and what becomes of it:

- ``aliyun.com/gpu-mem``: memory of one card, in the unit of the device plugin's ``--memory-unit``:
  GiB unless it is MiB (``cmd/nvidia/main.go`` of gpushare-device-plugin). The extender puts all
  main containers of a pod on one card, for whose choice it adds up what they request
  (``allocateGPUID`` in ``pkg/cache/nodeinfo.go`` of gpushare-scheduler-extender). Here a card is
  chosen for each container: a warning, because it matters only where containers exchange memory
  on their card. Init containers are read as well, as the kubelet counts them.
- Nobody counts or limits cores.
- ``aliyun.com/gpu-count``: the plugin writes the number of a node's cards there
  (``patchGPUCount``), and nobody reads it from a pod: it gets no card (its maintainer in the
  extender's issue 10). The authors of such pods mean whole cards (issues 48, 126), so they get
  them, with a warning. More than one beside ``gpu-mem`` is refused: gpushare puts ``gpu-mem`` on
  one card whatever it says.
- Annotations ``ALIYUN_COM_GPU_MEM_*`` are stamps of its extender, which overwrites them: removed.
- Alibaba Cloud's own clusters have later names, which the open programs do not read: the resource
  ``aliyun.com/gpu-core.percentage`` and a *label* ``aliyun.com/gpu-count``, which divides
  ``gpu-mem`` over cards. Both are refused: without them the pod would get something else.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from contract.errors import FieldError, quote
from contract.requests import annotations_of, keys_of
from webhook.admission.dialects.counts import CountedContainer, count_containers, read_containers
from webhook.admission.dialects.reading import MOST_MIB, CardRequest, Reading

GIB: Final = 1024
"""MiB of a unit of ``gpu-mem``, unless the device plugin has ``--memory-unit=MiB``."""

_MEMORY, _COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_CORES = "aliyun.com/gpu-core.percentage"
_STAMPS = "ALIYUN_COM_GPU_MEM_"


def read_gpushare(pod: Mapping[str, Any], *, path: str, memory_unit: int = GIB) -> Reading | None:
    """Read what a pod requests of gpushare; ``None`` if nothing.

    *memory_unit* is the MiB of one ``aliyun.com/gpu-mem``.
    """
    found = tuple(count_containers(pod, (_MEMORY, _COUNT, _CORES), path=path))
    if not found:
        return None
    containers, errors = read_containers(
        found,
        partial(_read_request, memory_unit=memory_unit),
        partial(_find_errors, memory_unit=memory_unit),
    )
    if any(each.counts is None or each.counts[_MEMORY] for each in found):
        errors += tuple(_check_label(pod, path))
    requests = [each.request for each in containers]
    warnings = [
        f"container {each.name}: {_COUNT} gave no card in gpushare"
        for each, request in zip(found, requests, strict=True)
        if request and request.is_whole
    ]
    if sum(not request.is_whole for request in requests if request) > 1:
        warnings.append("containers may get different cards: gpushare put all of a pod on one")
    stamps = tuple(each for each in annotations_of(pod) if each.startswith(_STAMPS))
    return Reading(containers, annotations=stamps, errors=errors, warnings=tuple(warnings))


def _read_request(
    _: CountedContainer, counts: Mapping[str, int], *, memory_unit: int
) -> CardRequest | None:
    if memory := counts[_MEMORY]:
        return CardRequest(1, memory=memory * memory_unit)
    return CardRequest(counts[_COUNT]) if counts[_COUNT] else None


def _find_errors(container: CountedContainer, *, memory_unit: int) -> Iterator[FieldError]:
    counts = container.counts
    if counts is None:
        return
    memory, count = counts[_MEMORY], counts[_COUNT]
    if counts[_CORES]:
        detail = "gpushare has no cores: write vcuda-core and vcuda-memory instead"
        yield container.refuse(_CORES, detail, "not-in-gpushare")
    if memory and count > 1:
        detail = (
            f"gpushare puts {_MEMORY} on one card: for a part of {count} cards write vcuda-core, "
            "vcuda-memory and the annotation gpu-cards-<container>"
        )
        yield container.refuse(_COUNT, detail, "memory-of-several-cards")
    if memory * memory_unit >= MOST_MIB:
        detail = "more than any card has" + (
            f": it is counted in GiB, {memory} MiB are {-(-memory // GIB)}"
            if memory_unit == GIB
            else ", in MiB"
        )
        yield container.refuse(_MEMORY, detail, "memory-beyond-a-card")


def _check_label(pod: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    value = keys_of(pod, "labels").get(_COUNT, "1")
    if value != "1":
        detail = (
            f"only Alibaba Cloud's scheduler divides {_MEMORY} over cards: write vcuda-core, "
            "vcuda-memory and the annotation gpu-cards-<container>"
        )
        where = f"{path}metadata.labels[{_COUNT}]"
        yield FieldError(where, detail, "memory-of-several-cards", quote(value))
